// Eight words at a time, by the instructions that every processor of the architecture has which runs these kernels.
#pragma once

#ifdef __x86_64__
#include "x86_64/vector.h"
#else
#include "aarch64/vector.h"
#endif

#include <cstring>

namespace gemmhub {

constexpr int64_t kLanes = 8;

// The first `count` of eight elements, with zeros behind them; and stored.
template <int64_t kDtype>
inline Floats wide_part(const void* from, int64_t count) {
  constexpr int64_t kSize = kDtype == kFloat32 ? 4 : 2;
  alignas(32) char edge[kSize * kLanes] = {};
  std::memcpy(edge, from, kSize * count);
  return wide<kDtype>(edge);
}
template <int64_t kDtype, bool kByInstruction>
inline void narrow_part(Floats values, void* to, int64_t count) {
  constexpr int64_t kSize = kDtype == kFloat32 ? 4 : 2;
  alignas(32) char edge[kSize * kLanes];
  narrow<kDtype, kByInstruction, false>(values, edge);
  std::memcpy(to, edge, kSize * count);
}

}  // namespace gemmhub
