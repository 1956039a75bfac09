// Kernel and adapter. A run is a plain loop, put on the stream of the simulated runtime. What a card would do wrong when it
// is not asked with can_implement first, it does: it faults.
#pragma once
#include <musa_sim.h>

#include <algorithm>
#include <vector>

#include "fake/builders.hpp"

namespace mutlass::gemm {
namespace kernel {
template <class ProblemShape_, class Mainloop_, class Epilogue_>
struct GemmUniversal {
  using ProblemShape = ProblemShape_;
  using Mainloop = Mainloop_;
  using Epilogue = Epilogue_;
  using ElementA = typename Mainloop::ElementA;
  using ElementB = typename Mainloop::ElementB;
  using ElementC = typename Epilogue::ElementC;
  using ElementD = typename Epilogue::ElementD;
  using StrideA = typename Mainloop::OperandA::Stride;
  using StrideB = typename Mainloop::OperandB::Stride;
  using StrideC = typename Epilogue::StrideC;
  using StrideD = typename Epilogue::StrideD;
  static_assert(std::is_same_v<typename Mainloop::ElementAccumulator, typename Epilogue::ElementAccumulator>,
                "Mainloop and epilogue do not agree on accumulator value type.");
  struct Arguments {
    GemmUniversalMode mode{};
    ProblemShape problem_shape{};
    typename Mainloop::Arguments mainloop{};
    typename Epilogue::Arguments epilogue{};
    KernelHardwareInfo hw_info{};
  };
};
}  // namespace kernel

namespace device {
template <class Kernel>
class GemmUniversalAdapter {
 public:
  using GemmKernel = Kernel;
  using Arguments = typename Kernel::Arguments;
  using ElementA = typename Kernel::ElementA;
  using ElementB = typename Kernel::ElementB;
  using ElementC = typename Kernel::ElementC;
  using ElementD = typename Kernel::ElementD;

  static Status can_implement(const Arguments& given) {
    const auto [m, n, k, count] = given.problem_shape;
    const bool mode = given.mode == GemmUniversalMode::kGemm || given.mode == GemmUniversalMode::kBatched;
    const bool a = (OperandA::k_dense ? k : m) % OperandA::alignment == 0;
    const bool b = (OperandB::k_dense ? k : n) % OperandB::alignment == 0;
    return mode && a && b && !FAKE_REFUSES ? Status::kSuccess : Status::kInvalid;
  }

  static size_t get_workspace_size(const Arguments&) { return FAKE_WORKSPACE; }

  Status initialize(const Arguments& given, void* workspace = nullptr, musaStream_t = nullptr) {
    if (FAKE_WORKSPACE && !workspace) return Status::kErrorWorkspaceNull;
    if (musaSimShouldFail("mutlassInitialize")) return Status::kErrorInternal;
    given_ = given;
    workspace_ = static_cast<unsigned char*>(workspace);
    return Status::kSuccess;
  }

  Status run(musaStream_t stream = nullptr) {
    if (const int fault = faults()) {
      musaSimSetSticky(fault);
    } else if (!musaSimShouldFail("mutlassRun")) {
      auto* work = new GemmUniversalAdapter(*this);
      if (musaSimEnqueue(stream, [](void* own) { static_cast<GemmUniversalAdapter*>(own)->compute(); }, work)) {
        delete work;
        return Status::kErrorInternal;
      }
    } else {
      return Status::kErrorInternal;
    }
    return musaGetLastError() == musaSuccess ? Status::kSuccess : Status::kErrorInternal;
  }

 private:
  using Mainloop = typename Kernel::Mainloop;
  using OperandA = typename Mainloop::OperandA;
  using OperandB = typename Mainloop::OperandB;
  using Accumulator = typename Mainloop::ElementAccumulator;

  Arguments given_;
  unsigned char* workspace_ = nullptr;

  // An error of the runtime that a card would report for such arguments.
  int faults() const {
    constexpr int kIllegalAddress = 700, kMisaligned = 716;
    const auto [m, n, k, count] = given_.problem_shape;
    const auto& loop = given_.mainloop;
    const auto& tail = given_.epilogue;
    if (k <= 0 || can_implement(given_) != Status::kSuccess) return kIllegalAddress;
    if (outside(loop.ptr_A, loop.dA, m, k, count) || outside(loop.ptr_B, loop.dB, n, k, count)) return kIllegalAddress;
    if (outside(tail.ptr_D, tail.dD, m, n, count)) return kIllegalAddress;
    if (tail.thread.beta != 0 && outside(tail.ptr_C, tail.dC, m, n, count)) return kIllegalAddress;
    if (FAKE_WORKSPACE && musaSimExtent(workspace_) < FAKE_WORKSPACE) return kIllegalAddress;
    const bool a = misaligned<OperandA>(loop.ptr_A, loop.dA, m, k, count);
    return a || misaligned<OperandB>(loop.ptr_B, loop.dB, n, k, count) ? kMisaligned : 0;
  }

  template <class T, class Stride>
  static bool outside(const T* p, const Stride& stride, int64_t rows, int64_t cols, int64_t count) {
    return musaSimExtent(p) < sizeof(T) * (at(stride, rows - 1, cols - 1, count - 1) + 1);
  }

  template <class Operand, class T, class Stride>
  static bool misaligned(const T* p, const Stride& stride, int rows, int cols, int count) {
    const int64_t vector = Operand::alignment * sizeof(T), lead = Operand::k_dense ? mute::get<0>(stride) : mute::get<1>(stride);
    const int outer = Operand::k_dense ? rows : cols;
    return reinterpret_cast<uintptr_t>(p) % vector || (outer > 1 && lead * sizeof(T) % vector) ||
           (count > 1 && mute::get<2>(stride) * sizeof(T) % vector);
  }

  template <class Stride>
  static int64_t at(const Stride& stride, int64_t row, int64_t col, int64_t which) {
    return row * mute::get<0>(stride) + col * mute::get<1>(stride) + which * mute::get<2>(stride);
  }

  template <class T>
  static Accumulator read(const T& x) {
    if constexpr (FAKE_TF32_ALWAYS && std::is_same_v<T, float>) return static_cast<float>(tfloat32_t{x});
    return static_cast<Accumulator>(x);
  }

  void compute() {
    const auto [m, n, k, count] = given_.problem_shape;
    const auto& loop = given_.mainloop;
    const auto& tail = given_.epilogue;
    if (FAKE_WORKSPACE) std::memset(workspace_, 0xA5, FAKE_WORKSPACE);
    std::vector<Accumulator> b(size_t(k) * n), sums(n);
    for (int l = 0; l < count; ++l) {
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < k; ++i) b[size_t(i) * n + j] = read(loop.ptr_B[at(loop.dB, j, i, l)]);
      for (int row = 0; row < m; ++row) {
        std::fill(sums.begin(), sums.end(), Accumulator(0));
        for (int i = 0; i < k; ++i) {
          const Accumulator x = read(loop.ptr_A[at(loop.dA, row, i, l)]);
          for (int j = 0; j < n; ++j) sums[j] += x * b[size_t(i) * n + j];
        }
        for (int j = 0; j < n; ++j) {
          Accumulator value = tail.thread.alpha * sums[j];
          if (tail.thread.beta != 0) value += tail.thread.beta * static_cast<Accumulator>(tail.ptr_C[at(tail.dC, row, j, l)]);
          tail.ptr_D[at(tail.dD, row, j, FAKE_IGNORES_BATCH ? 0 : l)] = static_cast<ElementD>(value);
        }
      }
    }
    delete this;
  }
};
}  // namespace device
}  // namespace mutlass::gemm
