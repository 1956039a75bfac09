// MUTLASS's names and template signatures, on CUTLASS's implementation for Hopper. For tests: what compiles here has
// the right template arguments and members in the right places; nothing of MUTLASS's own code is in it.
#pragma once

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/numeric_types.h>

#include "mutlass/version.h"

namespace mute = cute;

namespace mutlass {

using cutlass::bfloat16_t;
using cutlass::half_t;
using cutlass::Status;
using cutlass::tfloat32_t;
namespace layout = cutlass::layout;

inline const char* mutlassGetStatusString(Status status) { return cutlass::cutlassGetStatusString(status); }

namespace arch {
using Mp22 = cutlass::arch::Sm90;
#if MUTLASS_MINOR > 1
using Mp31 = cutlass::arch::Sm90;
#endif
using OpClassSimt = cutlass::arch::OpClassSimt;
using OpClassTensorOp = cutlass::arch::OpClassTensorOp;
}  // namespace arch

namespace gemm {
using cutlass::gemm::GemmUniversalMode;
using KernelTme = cutlass::gemm::collective::KernelScheduleAuto;  // Hopper has others of that kind

namespace collective {
using cutlass::gemm::collective::KernelScheduleAuto;
using cutlass::gemm::collective::StageCountAuto;

#if MUTLASS_MINOR == 1
struct PermuteLayoutAuto {};

template <class Arch, class OpClass, class A, class LayoutA, int AlignmentA, class B, class LayoutB, int AlignmentB,
          class Accumulator, class Tile, class Cluster, class AtomLayout, class Permute, class Stages, class Schedule,
          class Enable = void>
struct CollectiveBuilder : cutlass::gemm::collective::CollectiveBuilder<Arch, OpClass, A, LayoutA, AlignmentA, B, LayoutB,
                                                                        AlignmentB, Accumulator, Tile, Cluster, Stages,
                                                                        Schedule> {
  static_assert(cute::rank(AtomLayout{}) == 3, "a layout of atoms has three modes");
  static_assert(cute::is_same_v<Permute, PermuteLayoutAuto>, "the layout of permutations");
};
#else
template <class Arch, class OpClass, class A, class LayoutA, int AlignmentA, class B, class LayoutB, int AlignmentB,
          class Accumulator, class Tile, class Cluster, class Stages, class Schedule, class Enable = void>
struct CollectiveBuilder : cutlass::gemm::collective::CollectiveBuilder<Arch, OpClass, A, LayoutA, AlignmentA, B, LayoutB,
                                                                        AlignmentB, Accumulator, Tile, Cluster, Stages,
                                                                        Schedule> {};
#endif
}  // namespace collective

namespace kernel {
template <class Shape, class Mainloop, class Epilogue>
using GemmUniversal = cutlass::gemm::kernel::GemmUniversal<Shape, Mainloop, Epilogue>;
}

namespace device {
template <class Kernel>
using GemmUniversalAdapter = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
}
}  // namespace gemm

namespace epilogue::collective {
using cutlass::epilogue::collective::EpilogueScheduleAuto;
using cutlass::epilogue::collective::EpilogueTileAuto;

template <class Arch, class OpClass, class Tile, class Cluster, class EpilogueTile, class Accumulator, class Compute,
          class C, class LayoutC, int AlignmentC, class D, class LayoutD, int AlignmentD, class Schedule>
struct CollectiveBuilder
    : cutlass::epilogue::collective::CollectiveBuilder<Arch, OpClass, Tile, Cluster, EpilogueTile, Accumulator, Compute, C,
                                                       LayoutC, AlignmentC, D, LayoutD, AlignmentD, Schedule> {};
}  // namespace epilogue::collective
}  // namespace mutlass
