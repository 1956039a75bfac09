// Integers by their number of bits, and the choice of a type by a constant.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

template <bool first, class A, class B>
struct SelectType {
    using Type = A;
};
template <class A, class B>
struct SelectType<false, A, B> {
    using Type = B;
};

// A where `first` is true, else B.
template <bool first, class A, class B>
using Select = typename SelectType<first, A, B>::Type;
