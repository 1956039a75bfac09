// The two builders, in both spellings of the first, with the conditions that MUTLASS 0.1.1 has at compile time.
#pragma once
#include "fake/types.hpp"

namespace mutlass {
namespace fake {

using Dense = mute::Int<1>;
// (rows, k) where k is dense, or where rows are.
using KMajor = mute::Stride<int64_t, Dense, int64_t>;
using RowsMajor = mute::Stride<Dense, int64_t, int64_t>;

template <class Layout>
using StrideA = std::conditional_t<std::is_same_v<Layout, layout::RowMajor>, KMajor, RowsMajor>;
template <class Layout>
using StrideB = std::conditional_t<std::is_same_v<Layout, layout::RowMajor>, RowsMajor, KMajor>;

template <class Element, class Stride_, int Alignment, int Rows, int K, int Threads>
struct Operand {
  using Stride = Stride_;
  static constexpr bool k_dense = std::is_same_v<Stride, KMajor>;
  static constexpr int alignment = Alignment;
  static constexpr int along = (k_dense ? K : Rows) / Alignment;
  // 0 threads: nothing is public of how many there are.
  static_assert(along > 0 && Threads % along == 0, "the threads of a block do not fit the dense dimension of a tile");
  static constexpr int across = Threads / along;
  static_assert(across == 0 || (k_dense ? Rows : K) % across == 0, "the threads do not fit the other dimension");
  static_assert(Alignment * sizeof(Element) <= 16, "loads have 16 bytes at most");
};

template <class Arch, class OpClass, class Element>
constexpr bool has_instruction() {
  if (std::is_same_v<OpClass, arch::OpClassSimt>) return std::is_same_v<Element, float>;
  return std::is_same_v<Element, half_t> || std::is_same_v<Element, bfloat16_t> || std::is_same_v<Element, tfloat32_t> ||
         std::is_same_v<Element, int8_t>;
}

template <class Arch, class OpClass, class A, class LayoutA, int AlignmentA, class B, class LayoutB, int AlignmentB,
          class Accumulator, class Tile, int Threads>
struct Mainloop {
  // Of float operands tensor cores make TF32, silently.
  static constexpr bool tensor = std::is_same_v<OpClass, arch::OpClassTensorOp>;
  template <class T>
  using Multiplied = std::conditional_t<tensor && std::is_same_v<T, float>, tfloat32_t, T>;
  using ElementA = Multiplied<A>;
  using ElementB = Multiplied<B>;
  static_assert(std::is_same_v<ElementA, ElementB>, "ElementA and ElementB must be same");
  static_assert(has_instruction<Arch, OpClass, ElementA>(), "No eligible MMA operator for request configuration.");
  static_assert(std::is_same_v<Accumulator, std::conditional_t<sizeof(A) == 1, int32_t, float>>, "the accumulator");
  using ElementAccumulator = Accumulator;
  using OperandA = Operand<A, StrideA<LayoutA>, AlignmentA, mute::size<0, Tile>, mute::size<2, Tile>, Threads>;
  using OperandB = Operand<B, StrideB<LayoutB>, AlignmentB, mute::size<1, Tile>, mute::size<2, Tile>, Threads>;
  using TileShape = Tile;
#if FAKE_MP31
  static_assert(!std::is_same_v<Arch, arch::Mp31> ||
                    (AlignmentA * sizeof(A) == 16 && AlignmentB * sizeof(B) == 16 && tensor),
                "descriptors need 16 bytes");
#endif
  struct Arguments {
    const ElementA* ptr_A;
    typename OperandA::Stride dA;
    const ElementB* ptr_B;
    typename OperandB::Stride dB;
  };
};

template <class Tile, class Accumulator, class Compute, class C, class LayoutC, class D, class LayoutD>
struct Epilogue {
  using ElementAccumulator = Accumulator;
  using ElementC = C;
  using ElementD = D;
  using StrideC = StrideA<LayoutC>;
  using StrideD = StrideA<LayoutD>;
  struct Thread {
    Compute alpha = Compute(1), beta = Compute(0);
    const Compute *alpha_ptr = nullptr, *beta_ptr = nullptr;
  };
  struct Arguments {
    Thread thread{};
    const C* ptr_C = nullptr;
    StrideC dC{};
    D* ptr_D = nullptr;
    StrideD dD{};
  };
};

}  // namespace fake

namespace gemm {
struct KernelTme {};
}  // namespace gemm

namespace gemm::collective {
struct StageCountAuto {};
struct KernelScheduleAuto {};

#if FAKE_BUILDER_ARGUMENTS == 15
struct PermuteLayoutAuto {};

template <class Arch, class OpClass, class A, class LayoutA, int AlignmentA, class B, class LayoutB, int AlignmentB,
          class Accumulator, class Tile, class Cluster, class Atoms, class Permute, class Stages, class Schedule,
          class Enable = void>
struct CollectiveBuilder {
  static constexpr bool tensor = std::is_same_v<OpClass, arch::OpClassTensorOp>;
  static constexpr int atoms_m = mute::size<0, typename Atoms::Sizes>, atoms_n = mute::size<1, typename Atoms::Sizes>;
  static constexpr int threads = atoms_m * atoms_n * (tensor ? 128 : 1), side = tensor ? 32 : 1;
  static_assert(mute::size<0, Tile> % (side * atoms_m) == 0 && mute::size<1, Tile> % (side * atoms_n) == 0, "atoms");
  static_assert(std::is_same_v<Permute, PermuteLayoutAuto> && std::is_same_v<Stages, StageCountAuto> &&
                    std::is_same_v<Schedule, KernelScheduleAuto>,
                "the order of the last arguments");
  using CollectiveOp = fake::Mainloop<Arch, OpClass, A, LayoutA, AlignmentA, B, LayoutB, AlignmentB, Accumulator, Tile,
                                      threads>;
};
#else
template <class Arch, class OpClass, class A, class LayoutA, int AlignmentA, class B, class LayoutB, int AlignmentB,
          class Accumulator, class Tile, class Cluster, class Stages, class Schedule, class Enable = void>
struct CollectiveBuilder {
#if FAKE_MP31
  static constexpr bool mp31 = std::is_same_v<Arch, arch::Mp31>;
#else
  static constexpr bool mp31 = false;
#endif
  using Expected = std::conditional_t<mp31, KernelTme, KernelScheduleAuto>;
  static_assert(std::is_same_v<Stages, StageCountAuto>, "the order of the last arguments");
  static_assert(std::is_same_v<Schedule, Expected>, "Could not build a collective for given parameters.");
  using CollectiveOp = fake::Mainloop<Arch, OpClass, A, LayoutA, AlignmentA, B, LayoutB, AlignmentB, Accumulator, Tile, 0>;
};
#endif
}  // namespace gemm::collective

namespace epilogue::collective {
struct EpilogueTileAuto {};
struct EpilogueScheduleAuto {};

template <class Arch, class OpClass, class Tile, class Cluster, class EpilogueTile, class Accumulator, class Compute,
          class C, class LayoutC, int AlignmentC, class D, class LayoutD, int AlignmentD, class Schedule>
struct CollectiveBuilder {
  static_assert(std::is_same_v<EpilogueTile, EpilogueTileAuto> && std::is_same_v<Schedule, EpilogueScheduleAuto>, "order");
  static_assert(std::is_same_v<Compute, Accumulator> && std::is_same_v<C, D>, "what is public does not mix these");
  using CollectiveOp = fake::Epilogue<Tile, Accumulator, Compute, C, LayoutC, D, LayoutD>;
};
}  // namespace epilogue::collective
}  // namespace mutlass
