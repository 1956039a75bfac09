// The epilogue of rows of float32 sums, and their rounding to the dtype of the result, on the vectors of the header that is
// included before: vector.h or x86_64/vector_512.h.
#pragma once

#include <cstring>

#include "activation.h"
#include "gemm.h"

namespace {

using namespace gemmhub;

// `count` elements, at most kLanes, `stride` bytes apart.
template <int64_t kDtype>
inline Floats elements(const char* at, int64_t stride, int64_t count) {
  constexpr int64_t kSize = size_of(kDtype);
  if (stride == kSize) return count == kLanes ? wide<kDtype>(at) : wide_part<kDtype>(at, count);
  char edge[kSize * kLanes] = {};
  for (int64_t i = 0; i < count; ++i) std::memcpy(edge + i * kSize, at + i * stride, kSize);
  return wide<kDtype>(edge);
}

inline Floats elements(int64_t dtype, const char* at, int64_t stride, int64_t count) {
  if (dtype == kFloat16) return elements<kFloat16>(at, stride, count);
  if (dtype == kBfloat16) return elements<kBfloat16>(at, stride, count);
  return elements<kFloat32>(at, stride, count);
}

inline Floats bias_of(const char* at, int64_t stride, int64_t count) {
  if (stride) return elements<kFloat32>(at, stride, count);
  float value;
  std::memcpy(&value, at, 4);
  return spread(value);
}

template <int64_t kDtype, bool kByInstruction>
inline void scatter(Floats values, char* to, int64_t stride, int64_t count) {
  constexpr int64_t kSize = size_of(kDtype);
  if (stride == kSize) return narrow_part<kDtype, kByInstruction>(values, to, count);
  char edge[kSize * kLanes];
  narrow<kDtype, kByInstruction, false>(values, edge);
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride, edge + i * kSize, kSize);
}

// What is added to sums, and done to them, before they are rounded.
struct Ending {
  explicit Ending(const Call& call)
      : alpha(call.alpha), beta(call.beta), c(call.c), bias(call.bias),
        bias_stride(call.bias_column_stride), activation(call.activation) {}

  inline Floats of(Floats sum, const char* from, const char* biases, int64_t j, int64_t count) const {
    if (alpha == 0)
      sum = spread(0);  // not 0 * sum: NaN must not come through
    else if (alpha != 1)
      sum = times(sum, spread(static_cast<float>(alpha)));
    if (c.data) {
      const Floats more = elements(c.dtype, from + j * c.column_stride, c.column_stride, count);
      sum = plus(sum, beta == 1 ? more : times(more, spread(static_cast<float>(beta))));
    }
    if (bias) sum = plus(sum, bias_of(biases + j * bias_stride, bias_stride, count));
    return activation ? activated(sum, activation) : sum;
  }

  const double alpha, beta;
  const Matrix c;
  const int64_t bias, bias_stride, activation;
};

template <int64_t kDtype, bool kByInstruction, bool kStreamed, bool kPlain>
void finish_rows(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
                 int64_t columns) {
  constexpr int64_t kSize = size_of(kDtype), kLine = 64 / kSize;
  const Ending ending(call);
  const Matrix out = call.out, c = call.c;
  for (int64_t i = 0; i < rows; ++i, sums += stride) {
    char* to = reinterpret_cast<char*>(out.data) + (row + i) * out.row_stride + column * out.column_stride;
    const char* from = reinterpret_cast<const char*>(c.data) + (row + i) * c.row_stride + column * c.column_stride;
    const char* bias = reinterpret_cast<const char*>(call.bias) + (row + i) * call.bias_row_stride +
                       column * call.bias_column_stride;
    const auto result = [&](int64_t j, int64_t count) {
      const Floats sum = wide<kFloat32>(sums + j);  // there is room for whole vectors
      return kPlain ? sum : ending.of(sum, from, bias, j, count);
    };
    const auto edge = [&](int64_t j, int64_t end) {
      for (; j < end; j += kLanes) {
        const int64_t count = end - j < kLanes ? end - j : kLanes;
        scatter<kDtype, kByInstruction>(result(j, count), to + j * out.column_stride, out.column_stride, count);
      }
    };
    int64_t j = 0;
    if (out.column_stride == kSize) {
      const int64_t before = kStreamed ? (-reinterpret_cast<intptr_t>(to) & 63) / kSize : 0;  // the first whole line
      j = before < columns ? before : columns;
      edge(0, j);
      const int64_t end = columns - (columns - j) % (kStreamed ? kLine : kLanes);
      for (; j < end; j += kLanes) narrow<kDtype, kByInstruction, kStreamed>(result(j, kLanes), to + j * kSize);
    }
    edge(j, columns);
  }
}

template <int64_t kDtype, bool kByInstruction>
void finish_in(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
               int64_t columns) {
  const bool plain = call.alpha == 1 && !call.c.data && !call.bias && !call.activation;
  const auto finish = plain ? streamed(call) ? finish_rows<kDtype, kByInstruction, true, true>
                                             : finish_rows<kDtype, kByInstruction, false, true>
                            : streamed(call) ? finish_rows<kDtype, kByInstruction, true, false>
                                             : finish_rows<kDtype, kByInstruction, false, false>;
  finish(call, sums, stride, row, rows, column, columns);
}

// finish() of gemm.h, of sums of 4 bytes. int32 has no epilogue: a copy of its bits.
inline void finish_by_lanes(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
                            int64_t columns) {
  if (call.out.dtype == kFloat16) return finish_in<kFloat16, false>(call, sums, stride, row, rows, column, columns);
  if (call.out.dtype == kBfloat16 && has_rounding_to_bfloat16())
    return finish_in<kBfloat16, true>(call, sums, stride, row, rows, column, columns);
  if (call.out.dtype == kBfloat16) return finish_in<kBfloat16, false>(call, sums, stride, row, rows, column, columns);
  finish_in<kFloat32, false>(call, sums, stride, row, rows, column, columns);
}

}  // namespace
