// muBLASLt's heuristic and product.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kind_of.h"
#include "objects.h"

namespace musa_double {
namespace {

// What is known to be run with muBLASLt, with its source.
struct LtType {
  musaDataType_t operands, result;
  mublasComputeType_t compute;
  musaDataType_t scale;
  Math math;
  int lowest_architecture;
  bool transposes_a_only;  // A must be transposed and B not
  const char* source;
};
constexpr LtType types[] = {
    {MUSA_R_16F, MUSA_R_16F, MUBLAS_COMPUTE_32F, MUSA_R_32F, Math::f32, 22, false, "torch_musa, paddle_musa"},
    {MUSA_R_16F, MUSA_R_32F, MUBLAS_COMPUTE_32F, MUSA_R_32F, Math::f32, 22, false,
     "a published GEMM comparison on S4000"},
    {MUSA_R_16BF, MUSA_R_16BF, MUBLAS_COMPUTE_32F, MUSA_R_32F, Math::f32, 22, false, "torch_musa, paddle_musa"},
    {MUSA_R_32F, MUSA_R_32F, MUBLAS_COMPUTE_32F, MUSA_R_32F, Math::f32, 0, false, "a thunk of XLA's MUSA port"},
    {MUSA_R_8I, MUSA_R_32I, MUBLAS_COMPUTE_32I, MUSA_R_32I, Math::i32, 22, false, "torch_musa int8_gemm"},
    {MUSA_R_8F_E4M3, MUSA_R_16F, MUBLAS_COMPUTE_32F, MUSA_R_32F, Math::f32, 31, true, "paddle_musa cublaslt.h"},
    {MUSA_R_8F_E4M3, MUSA_R_16BF, MUBLAS_COMPUTE_32F, MUSA_R_32F, Math::f32, 31, true, "paddle_musa cublaslt.h"},
};

bool has_bias(mublasLtEpilogue_t epilogue) {
#ifdef MUSA_SIM_FULL_LT
  if (epilogue == MUBLASLT_EPILOGUE_RELU_BIAS || epilogue == MUBLASLT_EPILOGUE_GELU_BIAS) return true;
#endif
  return epilogue == MUBLASLT_EPILOGUE_BIAS;
}

Activation activation(mublasLtEpilogue_t epilogue) {
  switch (epilogue) {
    case MUBLASLT_EPILOGUE_DEFAULT:
    case MUBLASLT_EPILOGUE_BIAS:
      return Activation::none;
#ifdef MUSA_SIM_FULL_LT
    case MUBLASLT_EPILOGUE_RELU:
    case MUBLASLT_EPILOGUE_RELU_BIAS:
      return Activation::relu;
    case MUBLASLT_EPILOGUE_GELU:
    case MUBLASLT_EPILOGUE_GELU_BIAS:
      return Activation::gelu_tanh;
#endif
  }
  std::abort();  // is_epilogue admits no other
}

bool is_row_major(const LtLayout& layout) { return layout.order != MUBLASLT_ORDER_COL; }

// The stored matrix, or its transpose.
Operand operand(const LtLayout& layout, const void* data, bool transposed) {
  Operand result;
  result.kind = *kind_of(layout.type);
  result.data = data;
  result.row_stride = is_row_major(layout) ? layout.leading_dimension : 1;
  result.column_stride = is_row_major(layout) ? 1 : layout.leading_dimension;
  if (transposed) std::swap(result.row_stride, result.column_stride);
  result.batch_stride = layout.batch_count > 1 ? layout.batch_offset : 0;
  return result;
}

struct Problem {
  LtDescriptor descriptor;
  LtLayout a, b, c, d;
  const LtType* type = nullptr;
  Product product;  // without addresses and scalars

  // What an algorithm is good for: it may not be used for another problem.
  uint64_t fingerprint() const {
    uint64_t hash = 1469598103934665603u;
    const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (const LtLayout* layout : {&a, &b, &c, &d}) {
      for (const uint64_t value :
           {static_cast<uint64_t>(layout->type), layout->rows, layout->columns,
            static_cast<uint64_t>(layout->leading_dimension), static_cast<uint64_t>(layout->order),
            static_cast<uint64_t>(layout->batch_count), static_cast<uint64_t>(layout->batch_offset)}) {
        mix(value);
      }
    }
    for (const int value : {static_cast<int>(descriptor.op_a), static_cast<int>(descriptor.op_b),
                            static_cast<int>(descriptor.compute), static_cast<int>(descriptor.epilogue)}) {
      mix(static_cast<uint64_t>(value));
    }
    return hash;
  }
};

mublasStatus_t describe(const char* function, mublasLtHandle_t handle, mublasLtMatmulDesc_t desc,
                        mublasLtMatrixLayout_t a, mublasLtMatrixLayout_t b, mublasLtMatrixLayout_t c,
                        mublasLtMatrixLayout_t d, Problem& problem) {
  if (injected_fault(function)) return MUBLAS_STATUS_INTERNAL_ERROR;
  const auto owner = find(handle);
  if (!owner) return refuse(MUBLAS_STATUS_INVALID_HANDLE, function, "no such handle");
  if (owner->device != current_device())
    return refuse(MUBLAS_STATUS_INVALID_HANDLE, function, "the handle is of device %d", owner->device);
  const auto descriptor = find(desc);
  if (!descriptor) return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "no such descriptor");
  problem.descriptor = *descriptor;
  const std::pair<mublasLtMatrixLayout_t, LtLayout*> layouts[] = {
      {a, &problem.a}, {b, &problem.b}, {c, &problem.c}, {d, &problem.d}};
  for (const auto& [opaque, layout] : layouts) {
    const auto found = find(opaque);
    if (!found) return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "no such layout");
    *layout = *found;
    const auto line = static_cast<int64_t>(is_row_major(*layout) ? layout->columns : layout->rows);
    if (layout->leading_dimension < std::max<int64_t>(1, line))
      return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "a leading dimension of %lld",
                    static_cast<long long>(layout->leading_dimension));
    if (layout->batch_count != problem.a.batch_count)
      return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "different batch counts");
  }
  if (problem.c.type != problem.d.type || problem.c.order != problem.d.order)
    return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "C and D differ in type or order");

  const bool transposed_a = descriptor->op_a != MUBLAS_OP_N, transposed_b = descriptor->op_b != MUBLAS_OP_N;
  for (const LtType& row : types) {
    if (row.operands == problem.a.type && row.operands == problem.b.type && row.result == problem.d.type &&
        row.compute == descriptor->compute && row.scale == descriptor->scale &&
        architecture() >= row.lowest_architecture && (!row.transposes_a_only || (transposed_a && !transposed_b))) {
      problem.type = &row;
    }
  }
  if (!problem.type)
    return refuse(MUBLAS_STATUS_NOT_IMPLEMENTED, function, "these types, compute type and operations on mp_%d",
                  architecture());

  Product& product = problem.product;
  const auto rows = [](const LtLayout& layout, bool transposed) {
    return static_cast<int64_t>(transposed ? layout.columns : layout.rows);
  };
  const auto columns = [](const LtLayout& layout, bool transposed) {
    return static_cast<int64_t>(transposed ? layout.rows : layout.columns);
  };
  product.m = rows(problem.d, false);
  product.n = columns(problem.d, false);
  product.k = columns(problem.a, transposed_a);
  product.batch = problem.d.batch_count;
  product.math = problem.type->math;
  const bool fits = rows(problem.a, transposed_a) == product.m && rows(problem.b, transposed_b) == product.k &&
                    columns(problem.b, transposed_b) == product.n && problem.c.rows == problem.d.rows &&
                    problem.c.columns == problem.d.columns;
  if (!fits) return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "the shapes do not match");
  if (product.m == 0 || product.n == 0 || product.k == 0)
    return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "an empty matrix");
  if (product.math == Math::i32 && descriptor->epilogue != MUBLASLT_EPILOGUE_DEFAULT)
    return refuse(MUBLAS_STATUS_NOT_IMPLEMENTED, function, "an epilogue with integers");
  if (is_row_major(problem.d) && descriptor->epilogue != MUBLASLT_EPILOGUE_DEFAULT)
    return refuse(MUBLAS_STATUS_NOT_IMPLEMENTED, function, "an epilogue on rows");
  product.activation = activation(descriptor->epilogue);
  return MUBLAS_STATUS_SUCCESS;
}

// Algorithms: 0 needs no workspace, 1 a buffer for a sum that is split in two.
constexpr uint64_t algorithm_mark = 0x616c676f6c744d55;

size_t workspace_of(uint64_t algorithm, const Product& product) {
  return algorithm == 0 ? 0 : static_cast<size_t>((product.m * product.n * product.batch * 8 + 255) / 256 * 256);
}

bool heuristic_knows(const Problem& problem) {
  const char* off = std::getenv("MUSA_SIM_LT_HEURISTIC");
  // torch_musa's int8_gemm found the heuristic of no use there.
  return problem.type->math != Math::i32 && !(off && std::strcmp(off, "0") == 0);
}

mublasStatus_t status_of(const char* function, Verdict verdict) {
  switch (verdict) {
    case Verdict::fine:
      return MUBLAS_STATUS_SUCCESS;
    case Verdict::bad_pointer:
      return refuse(MUBLAS_STATUS_INVALID_POINTER, function, "an operand is no device memory, or misaligned");
    case Verdict::bad_size:
      return refuse(MUBLAS_STATUS_INVALID_SIZE, function, "an operand reaches beyond its allocation");
    case Verdict::overlap:
      return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "the result overlaps an operand, or itself");
  }
  __builtin_unreachable();
}

bool scalar(const Problem& problem, const void* address, Scalar& result) {
  const Kind kind = *kind_of(problem.type->scale);
  const bool in_device = musaSimExtent(address) >= size_of(kind);
  if (!address || in_device != problem.descriptor.scalars_in_device_memory) return false;
  result = in_device ? Scalar::from_device(kind, address) : Scalar::from_host(kind, address);
  return true;
}

// The workspace an algorithm uses, after checking that the caller gave it.
mublasStatus_t add_workspace(const char* function, const Problem& problem, const mublasLtMatmulAlgo_t* algo,
                             void* workspace, size_t bytes, Product& product) {
  if (bytes && (!on_device(workspace, bytes) || reinterpret_cast<uintptr_t>(workspace) % 256)) {
    return refuse(MUBLAS_STATUS_INVALID_POINTER, function,
                  "a workspace that is not %zu bytes of device memory, aligned to 256", bytes);
  }
  if (bytes && problem.type->math == Math::i32)
    return refuse(MUBLAS_STATUS_NOT_IMPLEMENTED, function, "a workspace with integers");
  if (!algo) return MUBLAS_STATUS_SUCCESS;
  if (algo->data[0] != algorithm_mark || algo->data[2] != problem.fingerprint()) {
    return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "an algorithm of another problem, or none at all");
  }
  const size_t needed = workspace_of(algo->data[1], product);
  if (needed > bytes)
    return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "a workspace of %zu bytes, of the %zu needed", bytes, needed);
  product.workspace = workspace;
  product.workspace_bytes = needed;
  return MUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace musa_double

using namespace musa_double;

extern "C" {

mublasStatus_t mublasLtMatmulAlgoGetHeuristic(mublasLtHandle_t handle, mublasLtMatmulDesc_t desc,
                                              mublasLtMatrixLayout_t Adesc, mublasLtMatrixLayout_t Bdesc,
                                              mublasLtMatrixLayout_t Cdesc, mublasLtMatrixLayout_t Ddesc,
                                              mublasLtMatmulPreference_t preference, int requestedAlgoCount,
                                              mublasLtMatmulHeuristicResult_t* results, int* returnedAlgoCount) {
  const char* const function = "mublasLtMatmulAlgoGetHeuristic";
  Problem problem{};
  const mublasStatus_t described = describe(function, handle, desc, Adesc, Bdesc, Cdesc, Ddesc, problem);
  if (described != MUBLAS_STATUS_SUCCESS) return described;
  const auto limits = find(preference);
  if (!limits) return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "no such preference");
  if (requestedAlgoCount < 1 || !results || !returnedAlgoCount) return MUBLAS_STATUS_INVALID_VALUE;
  *returnedAlgoCount = 0;
  if (!heuristic_knows(problem)) return MUBLAS_STATUS_SUCCESS;
  for (const uint64_t algorithm : {1, 0}) {
    const size_t needed = workspace_of(algorithm, problem.product);
    if (needed > limits->workspace_bytes || *returnedAlgoCount == requestedAlgoCount) continue;
    mublasLtMatmulHeuristicResult_t& result = results[(*returnedAlgoCount)++];
    std::memset(&result, 0xb5, sizeof result);
    result.algo.data[0] = algorithm_mark;
    result.algo.data[1] = algorithm;
    result.algo.data[2] = problem.fingerprint();
    result.state = MUBLAS_STATUS_SUCCESS;
    result.workspaceSize = needed;
    result.wavesCount = 1.0f;
  }
  return MUBLAS_STATUS_SUCCESS;
}

mublasStatus_t mublasLtMatmul(mublasLtHandle_t handle, mublasLtMatmulDesc_t desc, const void* alpha, const void* A,
                              mublasLtMatrixLayout_t Adesc, const void* B, mublasLtMatrixLayout_t Bdesc,
                              const void* beta, const void* C, mublasLtMatrixLayout_t Cdesc, void* D,
                              mublasLtMatrixLayout_t Ddesc, const mublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspaceSizeInBytes, musaStream_t stream) {
  const char* const function = "mublasLtMatmul";
  Problem problem{};
  const mublasStatus_t described = describe(function, handle, desc, Adesc, Bdesc, Cdesc, Ddesc, problem);
  if (described != MUBLAS_STATUS_SUCCESS) return described;
  if (stream && !musaSimStreamAlive(stream)) return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "no such stream");
  Product& product = problem.product;
  const LtDescriptor& descriptor = problem.descriptor;
  product.a = operand(problem.a, A, descriptor.op_a != MUBLAS_OP_N);
  product.b = operand(problem.b, B, descriptor.op_b != MUBLAS_OP_N);
  product.c = operand(problem.c, C, false);
  product.d = operand(problem.d, D, false);
  if (!scalar(problem, alpha, product.alpha) || !scalar(problem, beta, product.beta)) {
    return refuse(MUBLAS_STATUS_INVALID_POINTER, function, "alpha or beta is not where the pointer mode says");
  }
  if (has_bias(descriptor.epilogue)) {
    if (!descriptor.bias)
      return refuse(MUBLAS_STATUS_INVALID_POINTER, function, "an epilogue with a bias, and no bias");
    product.bias.kind = *kind_of(problem.d.type);
    product.bias.data = descriptor.bias;
    product.bias.row_stride = 1;  // a bias for each row of D
  }
  const mublasStatus_t scratch = add_workspace(function, problem, algo, workspace, workspaceSizeInBytes, product);
  if (scratch != MUBLAS_STATUS_SUCCESS) return scratch;
  const mublasStatus_t checked = status_of(function, check(product));
  if (checked != MUBLAS_STATUS_SUCCESS) return checked;
  if (enqueue(stream, product)) return refuse(MUBLAS_STATUS_INTERNAL_ERROR, function, "the stream takes no work");
  leave_sticky_error();
  return MUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
