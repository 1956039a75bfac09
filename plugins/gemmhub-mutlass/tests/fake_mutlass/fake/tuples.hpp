// The little of mute that a user of MUTLASS's builders needs. Constants cannot be assigned to, as there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace mute {
template <int N>
struct Int {
  static constexpr int value = N;
  constexpr operator int() const { return N; }
};
template <class... T>
using Shape = std::tuple<T...>;
template <class... T>
using Stride = std::tuple<T...>;
template <class S>
struct Layout {
  using Sizes = S;
};
using std::get;

template <int I, class T>
inline constexpr int size = std::tuple_element_t<I, T>::value;
}  // namespace mute
