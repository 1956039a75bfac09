// musa::dnn::MatMul (rank 2) and BatchMatMul (rank 3).
#include "cxx_access.h"

namespace musa {
namespace dnn {

class MatMulAccess {
 public:
  template <class Op>
  static Outcome call(const char* function, int rank, const Op& op, const Handle& handle, const Tensor& d,
                      const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias, MatMulCall& result) {
    if (musa_double::injected_fault(function)) return Outcome::internal_error;
    const HandleState* state = HandleAccess::state(handle);
    if (!state) return musa_double::refuse(Outcome::not_initialized, function, "no such handle");
    result.function = function;
    result.device = state->device;
    result.stream = state->stream;
    result.allow_tf32 = state->allow_tf32;
    result.rank = rank;
    result.tensor_mode = op.mode_ == Op::ComputeMode::TENSOR;
    result.transpose_a = op.left_;
    result.transpose_b = op.right_;
    result.alpha = op.alpha_;
    result.beta = op.beta_;
    result.gamma = op.gamma_;
    result.a = TensorAccess::view(a);
    result.b = TensorAccess::view(b);
    result.c = TensorAccess::view(c);
    result.d = TensorAccess::view(d);
    result.bias = TensorAccess::view(bias);
    return Outcome::success;
  }

  template <class Op>
  static Status run(const char* function, int rank, const Op& op, const Handle& handle, const Tensor& d,
                    const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias,
                    const MemoryMaintainer& maintainer) {
    MatMulCall described{};
    const Outcome outcome = call(function, rank, op, handle, d, a, b, c, bias, described);
    return status(outcome == Outcome::success ? musa_double::run(described, maintainer) : outcome);
  }

  template <class Op>
  static Status workspace(const char* function, int rank, const Op& op, const Handle& handle, size_t& bytes,
                          const Tensor& c, const Tensor& a, const Tensor& b) {
    MatMulCall described{};
    const Outcome outcome = call(function, rank, op, handle, c, a, b, c, Tensor(), described);
    return status(outcome == Outcome::success ? musa_double::workspace_size(described, bytes) : outcome);
  }
};

#define MATMUL(OP, RANK)                                                                                          \
  OP::OP() : mode_(ComputeMode::SCALAR) {}                                                                        \
  Status OP::SetComputeMode(ComputeMode mode) {                                                                   \
    if (mode != ComputeMode::SCALAR && mode != ComputeMode::TENSOR) return Status::INVALID_PARAMETER;             \
    mode_ = mode;                                                                                                 \
    return Status::SUCCESS;                                                                                       \
  }                                                                                                               \
  Status OP::SetTranspose(bool left, bool right) {                                                                \
    left_ = left;                                                                                                 \
    right_ = right;                                                                                               \
    return Status::SUCCESS;                                                                                       \
  }                                                                                                               \
  Status OP::SetAlpha(double alpha) {                                                                             \
    alpha_ = alpha;                                                                                               \
    return Status::SUCCESS;                                                                                       \
  }                                                                                                               \
  Status OP::SetBeta(double beta) {                                                                               \
    beta_ = beta;                                                                                                 \
    return Status::SUCCESS;                                                                                       \
  }                                                                                                               \
  Status OP::SetGamma(double gamma) {                                                                             \
    gamma_ = gamma;                                                                                               \
    return Status::SUCCESS;                                                                                       \
  }                                                                                                               \
  Status OP::SetDeterministic(bool deterministic) {                                                               \
    deterministic_ = deterministic;                                                                               \
    return Status::SUCCESS;                                                                                       \
  }                                                                                                               \
  Status OP::GetWorkspaceSize(Handle& handle, size_t& bytes, const Tensor& c, const Tensor& a, const Tensor& b)   \
      const {                                                                                                     \
    return MatMulAccess::workspace(#OP ".GetWorkspaceSize", RANK, *this, handle, bytes, c, a, b);                 \
  }                                                                                                               \
  Status OP::Run(Handle& handle, Tensor& c, const Tensor& a, const Tensor& b, const MemoryMaintainer& maintainer) \
      const {                                                                                                     \
    return MatMulAccess::run(#OP ".Run", RANK, *this, handle, c, a, b, c, Tensor(), maintainer);                  \
  }                                                                                                               \
  Status OP::RunWithBiasAdd(Handle& handle, Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c,         \
                            const Tensor& bias, const MemoryMaintainer& maintainer) const {                       \
    return MatMulAccess::run(#OP ".RunWithBiasAdd", RANK, *this, handle, d, a, b, c, bias, maintainer);           \
  }                                                                                                               \
  Status OP::RunWithBiasAdd(Handle& handle, Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias,      \
                            const MemoryMaintainer& maintainer) const {                                           \
    return MatMulAccess::run(#OP ".RunWithBiasAdd", RANK, *this, handle, c, a, b, c, bias, maintainer);           \
  }

MATMUL(MatMul, 2)
MATMUL(BatchMatMul, 3)

}  // namespace dnn
}  // namespace musa
