/* What the 16-bit floating-point types share: they are stored in 16 bits and compute in float. For host code, too. */
#ifndef MUSA_SIM_16BIT_H
#define MUSA_SIM_16BIT_H
#include <stddef.h>

#include "vector_types.h"

#define MUSA_SIM_SCALAR static inline __attribute__((always_inline, unused))

/* TYPE with its conversions and operators, and PAIR, two of them in four bytes. */
#define MUSA_SIM_16BIT_TYPE(TYPE, PAIR, TO_FLOAT, FROM_FLOAT)                                             \
  struct __attribute__((aligned(2))) TYPE {                                                               \
    unsigned short bits;                                                                                  \
    TYPE() = default;                                                                                     \
    TYPE(float value) : bits(FROM_FLOAT(value)) {}                                                        \
    TYPE(double value) : bits(FROM_FLOAT(float(value))) {}                                                \
    TYPE(int value) : bits(FROM_FLOAT(float(value))) {}                                                   \
    operator float() const { return TO_FLOAT(bits); }                                                     \
  };                                                                                                      \
  struct __attribute__((aligned(4))) PAIR {                                                               \
    TYPE x, y;                                                                                            \
  };                                                                                                      \
  MUSA_SIM_16BIT_OPERATOR(TYPE, +, +=, __hadd)                                                            \
  MUSA_SIM_16BIT_OPERATOR(TYPE, -, -=, __hsub)                                                            \
  MUSA_SIM_16BIT_OPERATOR(TYPE, *, *=, __hmul)                                                            \
  MUSA_SIM_16BIT_OPERATOR(TYPE, /, /=, __hdiv)                                                            \
  MUSA_SIM_SCALAR TYPE operator-(TYPE a) { return TYPE(-float(a)); }                                      \
  MUSA_SIM_16BIT_COMPARE(TYPE, ==, __heq)                                                                 \
  MUSA_SIM_16BIT_COMPARE(TYPE, !=, __hne)                                                                 \
  MUSA_SIM_16BIT_COMPARE(TYPE, <, __hlt)                                                                  \
  MUSA_SIM_16BIT_COMPARE(TYPE, <=, __hle)                                                                 \
  MUSA_SIM_16BIT_COMPARE(TYPE, >, __hgt)                                                                  \
  MUSA_SIM_16BIT_COMPARE(TYPE, >=, __hge)                                                                 \
  MUSA_SIM_SCALAR TYPE __hfma(TYPE a, TYPE b, TYPE c) {                                                   \
    return TYPE(__builtin_fmaf(float(a), float(b), float(c)));                                            \
  }                                                                                                       \
  MUSA_SIM_SCALAR PAIR __hadd2(PAIR a, PAIR b) { return PAIR{a.x + b.x, a.y + b.y}; }                     \
  MUSA_SIM_SCALAR PAIR __hmul2(PAIR a, PAIR b) { return PAIR{a.x * b.x, a.y * b.y}; }                     \
  MUSA_SIM_SCALAR PAIR __hfma2(PAIR a, PAIR b, PAIR c) {                                                  \
    return PAIR{__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                            \
  }

#define MUSA_SIM_16BIT_OPERATOR(TYPE, OPERATOR, ASSIGN, NAME)                                             \
  MUSA_SIM_SCALAR TYPE operator OPERATOR(TYPE a, TYPE b) { return TYPE(float(a) OPERATOR float(b)); }     \
  MUSA_SIM_SCALAR TYPE& operator ASSIGN(TYPE& a, TYPE b) { return a = a OPERATOR b; }                     \
  MUSA_SIM_SCALAR TYPE NAME(TYPE a, TYPE b) { return a OPERATOR b; }

#define MUSA_SIM_16BIT_COMPARE(TYPE, OPERATOR, NAME)                                                      \
  MUSA_SIM_SCALAR bool operator OPERATOR(TYPE a, TYPE b) { return float(a) OPERATOR float(b); }           \
  MUSA_SIM_SCALAR bool NAME(TYPE a, TYPE b) { return a OPERATOR b; }

#endif
