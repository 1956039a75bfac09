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
  if (dtype == kInt32) return of_integers(elements<kFloat32>(at, stride, count));
  if (dtype == kFloat16) return elements<kFloat16>(at, stride, count);
  if (dtype == kBfloat16) return elements<kBfloat16>(at, stride, count);
  return elements<kFloat32>(at, stride, count);
}

inline Floats one(const char* at) {
  float value;
  std::memcpy(&value, at, 4);
  return spread(value);
}

// The elements of a vector for a row of results.
struct RowOf {
  RowOf(const Strip& strip, int64_t row, int64_t column)
      : at(strip.data ? reinterpret_cast<const char*>(strip.data) + row * strip.row_stride + column * strip.column_stride : nullptr),
        stride(strip.column_stride) {}
  inline Floats from(int64_t j, int64_t count) const {
    return stride ? elements<kFloat32>(at + j * stride, stride, count) : one(at);
  }
  const char* const at;  // null without a vector
  const int64_t stride;
};

template <int64_t kDtype, bool kByInstruction>
inline void scatter(Floats values, char* to, int64_t stride, int64_t count) {
  constexpr int64_t kSize = size_of(kDtype);
  if (stride == kSize) return narrow_part<kDtype, kByInstruction>(values, to, count);
  char edge[kSize * kLanes];
  narrow<kDtype, kByInstruction, false>(values, edge);
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride, edge + i * kSize, kSize);
}

// The epilogue of a row of sums from `column` on. The order of its steps is that of the NumPy backend.
struct Ending {
  Ending(const Call& call, bool integers, int64_t row, int64_t column)
      : integers(integers), alpha(call.alpha), beta(call.beta), c_dtype(call.c.dtype), c_stride(call.c.column_stride),
        c(call.c.data ? reinterpret_cast<const char*>(call.c.data) + row * call.c.row_stride + column * c_stride : nullptr),
        scale_a(call.scale_a, row, column), scale_b(call.scale_b, row, column), bias(call.bias, row, column),
        activation(call.activation), scale_out(reinterpret_cast<const char*>(call.scale_out)) {}

  inline Floats of(Floats sum, int64_t j, int64_t count) const {
    if (integers) sum = of_integers(sum);
    if (alpha == 0) {
      sum = spread(0);  // not 0 * sum: NaN must not come through, neither from a scale
    } else {
      if (scale_a.at) sum = times(sum, scale_a.from(j, count));
      if (scale_b.at) sum = times(sum, scale_b.from(j, count));
      if (alpha != 1) sum = times(sum, spread(static_cast<float>(alpha)));
    }
    if (c) {
      const Floats more = elements(c_dtype, c + j * c_stride, c_stride, count);
      sum = plus(sum, beta == 1 ? more : times(more, spread(static_cast<float>(beta))));
    }
    if (bias.at) sum = plus(sum, bias.from(j, count));
    if (activation) sum = activated(sum, activation);
    return scale_out ? times(sum, one(scale_out)) : sum;
  }

  // Whether the epilogue of a row is that of quantized operands: a factor or none, those of the columns, and a bias of these or none.
  bool rescales() const {
    const auto along = [](const RowOf& x) { return x.stride == 4; };
    return !scale_a.stride && scale_b.at && along(scale_b) && (!bias.at || along(bias)) && alpha == 1 &&
           !c && !activation && !scale_out;
  }
  // of() without its branches, where rescales() holds.
  template <bool kBias>
  inline Floats rescaled(Floats sum, Floats factor, int64_t j) const {
    sum = times(times(integers ? of_integers(sum) : sum, factor), wide<kFloat32>(scale_b.at + 4 * j));
    return kBias ? plus(sum, wide<kFloat32>(bias.at + 4 * j)) : sum;
  }

  const bool integers;
  const double alpha, beta;
  const int64_t c_dtype, c_stride;
  const char* const c;
  const RowOf scale_a, scale_b, bias;
  const int64_t activation;
  const char* const scale_out;
};

template <int64_t kDtype, bool kByInstruction, bool kStreamed, bool kPlain>
void finish_rows(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
                 int64_t columns) {
  constexpr int64_t kSize = size_of(kDtype), kLine = 64 / kSize;
  const Matrix out = call.out;
  const bool integers = rounds_integers(call);
  for (int64_t i = 0; i < rows; ++i, sums += stride) {
    char* to = reinterpret_cast<char*>(out.data) + (row + i) * out.row_stride + column * out.column_stride;
    const Ending ending(call, integers, row + i, column);
    const auto result = [&](int64_t j, int64_t count) {
      const Floats sum = wide<kFloat32>(sums + j);  // there is room for whole vectors
      return kPlain ? sum : ending.of(sum, j, count);
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
      const auto whole = [&](auto of) {
        for (; j < end; j += kLanes) narrow<kDtype, kByInstruction, kStreamed>(of(j), to + j * kSize);
      };
      const bool rescales = !kPlain && ending.rescales();
      const Floats factor = rescales && ending.scale_a.at ? one(ending.scale_a.at) : spread(1);
      if (rescales && ending.bias.at)
        whole([&](int64_t at) { return ending.rescaled<true>(wide<kFloat32>(sums + at), factor, at); });
      else if (rescales)
        whole([&](int64_t at) { return ending.rescaled<false>(wide<kFloat32>(sums + at), factor, at); });
      else
        whole([&](int64_t at) { return result(at, kLanes); });
    }
    edge(j, columns);
  }
}

template <int64_t kDtype, bool kByInstruction>
void finish_in(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
               int64_t columns) {
  const bool plain = is_plain(call);
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
