// The choice of a type by a constant.
#pragma once

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
