// One product by MUTLASS, as a small library with a C interface. The file that includes this one defines:
//
//   GEMMHUB_BUILDER_ARGUMENTS       15: the mainloop's builder takes a layout of atoms and one of permutations (MUTLASS
//                                   0.1); 13: it chooses them itself (from 0.2 on)
//   GEMMHUB_ARCH, GEMMHUB_OP_CLASS  tags of mutlass::arch
//   GEMMHUB_SCHEDULE                of the mainloop
//   GEMMHUB_ELEMENT                 of a and b
//   GEMMHUB_RESULT                  of c and d
//   GEMMHUB_ACCUMULATOR             also of alpha and beta
//   GEMMHUB_TILE_{M,N,K}, GEMMHUB_ATOMS_{M,N}
//   GEMMHUB_COLUMN_{A,B}            1: stored column-major. c and d are row-major
//   GEMMHUB_ALIGNMENT_{A,B,D}       elements in a load or store
#pragma once

#include <cstddef>
#include <cstdint>

#include <musa_runtime.h>

#include "mute/tensor.hpp"
#include "mutlass/mutlass.h"
#include "mutlass/numeric_types.h"
#include "mutlass/gemm/collective/collective_builder.hpp"
#include "mutlass/gemm/device/gemm_universal_adapter.h"
#include "mutlass/gemm/kernel/gemm_universal.hpp"
// The last one: that of MUTLASS 0.3.0 uses pipelines, which it does not include.
#include "mutlass/epilogue/collective/collective_builder.hpp"

#define GEMMHUB_EXPORT extern "C" __attribute__((visibility("default")))

// Leading dimensions and steps from one matrix of the batch to the next count elements. As in Python (library.py).
struct GemmhubCall {
  int32_t m, n, k, count;
  int64_t lda, ldb, ldc, ldd;
  int64_t step_a, step_b, step_c, step_d;
  const void* a;
  const void* b;
  const void* c;  // null: none, and beta is 0
  void* d;
  double alpha, beta;
  int32_t device;
};

namespace {

using Element = GEMMHUB_ELEMENT;
using Result = GEMMHUB_RESULT;
using Accumulator = GEMMHUB_ACCUMULATOR;

using RowMajor = mutlass::layout::RowMajor;
using ColumnMajor = mutlass::layout::ColumnMajor;
template <bool Column>
struct Stored {
  using Layout = RowMajor;
};
template <>
struct Stored<true> {
  using Layout = ColumnMajor;
};

using Tile = mute::Shape<mute::Int<GEMMHUB_TILE_M>, mute::Int<GEMMHUB_TILE_N>, mute::Int<GEMMHUB_TILE_K>>;
using Cluster = mute::Shape<mute::Int<1>, mute::Int<1>, mute::Int<1>>;

using Mainloop = typename mutlass::gemm::collective::CollectiveBuilder<
    GEMMHUB_ARCH, GEMMHUB_OP_CLASS,
    Element, Stored<GEMMHUB_COLUMN_A>::Layout, GEMMHUB_ALIGNMENT_A,
    Element, Stored<GEMMHUB_COLUMN_B>::Layout, GEMMHUB_ALIGNMENT_B,
    Accumulator, Tile, Cluster,
#if GEMMHUB_BUILDER_ARGUMENTS == 15
    mute::Layout<mute::Shape<mute::Int<GEMMHUB_ATOMS_M>, mute::Int<GEMMHUB_ATOMS_N>, mute::Int<1>>>,
    mutlass::gemm::collective::PermuteLayoutAuto,
#endif
    mutlass::gemm::collective::StageCountAuto,
    GEMMHUB_SCHEDULE>::CollectiveOp;

using Epilogue = typename mutlass::epilogue::collective::CollectiveBuilder<
    GEMMHUB_ARCH, GEMMHUB_OP_CLASS, Tile, Cluster,
    mutlass::epilogue::collective::EpilogueTileAuto,
    Accumulator, Accumulator,
    Result, RowMajor, GEMMHUB_ALIGNMENT_D,
    Result, RowMajor, GEMMHUB_ALIGNMENT_D,
    mutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;

using Kernel = mutlass::gemm::kernel::GemmUniversal<mute::Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = mutlass::gemm::device::GemmUniversalAdapter<Kernel>;

// A stride has three parts, of which the dense one is a constant 1, and `leading` names the other one of the matrix.
template <int leading, class Stride>
Stride stride(int64_t leading_dimension, int64_t step) {
  Stride made{};
  mute::get<leading>(made) = leading_dimension;
  mute::get<2>(made) = step;
  return made;
}

typename Gemm::Arguments arguments(const GemmhubCall& call) {
  typename Gemm::Arguments made{};
  made.mode = call.count > 1 ? mutlass::gemm::GemmUniversalMode::kBatched : mutlass::gemm::GemmUniversalMode::kGemm;
  made.problem_shape = mute::Shape<int, int, int, int>{call.m, call.n, call.k, call.count};
  // MUTLASS describes a as (m, k), b as (n, k) and d as (m, n).
  made.mainloop.ptr_A = static_cast<const typename Gemm::ElementA*>(call.a);
  made.mainloop.dA = stride<GEMMHUB_COLUMN_A ? 1 : 0, typename Kernel::StrideA>(call.lda, call.step_a);
  made.mainloop.ptr_B = static_cast<const typename Gemm::ElementB*>(call.b);
  made.mainloop.dB = stride<GEMMHUB_COLUMN_B ? 0 : 1, typename Kernel::StrideB>(call.ldb, call.step_b);
  made.epilogue.thread.alpha = static_cast<Accumulator>(call.alpha);
  made.epilogue.thread.beta = static_cast<Accumulator>(call.beta);
  // Without an addend beta is 0 and nothing is read, but descriptors may be made of its address.
  made.epilogue.ptr_C = static_cast<const typename Gemm::ElementC*>(call.c ? call.c : call.d);
  made.epilogue.dC = stride<0, typename Kernel::StrideC>(call.c ? call.ldc : call.ldd, call.c ? call.step_c : call.step_d);
  made.epilogue.ptr_D = static_cast<typename Gemm::ElementD*>(call.d);
  made.epilogue.dD = stride<0, typename Kernel::StrideD>(call.ldd, call.step_d);
  made.hw_info.device_id = call.device;
  return made;
}

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

// d = beta * c, for products that count for nothing: k is 0, which MUTLASS's kernels cannot do, or alpha is, with
// which they would let NaN through.
__global__ void gemmhub_scale(GemmhubCall call) {
  const int64_t columns = call.n, elements = columns * call.m, total = elements * call.count;
  const auto* c = static_cast<const Result*>(call.c);
  auto* d = static_cast<Result*>(call.d);
  const auto beta = static_cast<Accumulator>(call.beta);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < total; at += threads) {
    const int64_t which = at / elements, row = at % elements / columns, column = at % columns;
    Accumulator value = Accumulator(0);
    if (c) value = beta * static_cast<Accumulator>(c[which * call.step_c + row * call.ldc + column]);
    d[which * call.step_d + row * call.ldd + column] = static_cast<Result>(value);
  }
}

}  // namespace

// 0 where MUTLASS's own check takes this, else its status.
GEMMHUB_EXPORT int gemmhub_mutlass_check(const GemmhubCall* call) {
  return static_cast<int>(Gemm::can_implement(arguments(*call)));
}

// Bytes of scratch memory that a run needs.
GEMMHUB_EXPORT size_t gemmhub_mutlass_workspace(const GemmhubCall* call) {
  return Gemm::get_workspace_size(arguments(*call));
}

// A status for people.
GEMMHUB_EXPORT const char* gemmhub_mutlass_words(int status) {
  return mutlass::mutlassGetStatusString(static_cast<mutlass::Status>(status));
}

// Put the product on a stream of the current device; 0, or MUTLASS's status. With `product` 0 it counts for nothing.
// MUTLASS takes any error that the runtime has pending for its own launch's: one that was there before is cleared first,
// and given back in `pending`.
GEMMHUB_EXPORT int gemmhub_mutlass_run(const GemmhubCall* call, int product, void* workspace, void* stream,
                                       int* pending) {
  *pending = static_cast<int>(musaGetLastError());
  if (call->m == 0 || call->n == 0 || call->count == 0) return 0;
  const auto on = static_cast<musaStream_t>(stream);
  if (!product || call->k == 0) {
    const int64_t total = static_cast<int64_t>(call->m) * call->n * call->count;
    const int64_t blocks = (total + kThreads - 1) / kThreads;
    gemmhub_scale<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0, on>>>(*call);
    return static_cast<int>(musaGetLastError() == musaSuccess ? mutlass::Status::kSuccess
                                                              : mutlass::Status::kErrorInternal);
  }
  const auto made = arguments(*call);
  mutlass::Status status = Gemm::can_implement(made);
  if (status != mutlass::Status::kSuccess) return static_cast<int>(status);
  Gemm gemm;
  status = gemm.initialize(made, workspace, on);
  if (status != mutlass::Status::kSuccess) return static_cast<int>(status);
  return static_cast<int>(gemm.run(on));
}
