// The three functions that take types at run time. Their linkage is the header's: C++ names, or plain ones from 5.1.
#include "gemm.h"

using namespace musa_double;

namespace {

// Fills in what the types say, and calls gemm().
mublasStatus_t typed(GemmCall call, musaDataType_t a, musaDataType_t b, musaDataType_t c, mublasComputeType_t compute,
                     mublasGemmAlgo_t algo) {
  if (algo != MUBLAS_GEMM_DEFAULT && algo != MUBLAS_GEMM_DEFAULT_TENSOR_OP) {
    return refuse(MUBLAS_STATUS_INVALID_VALUE, call.function, "algo: %d", static_cast<int>(algo));
  }
  const auto row = gemm_type(a, b, c, compute);
  if (!row || architecture() < row->lowest_architecture) {
    return refuse(MUBLAS_STATUS_NOT_IMPLEMENTED, call.function, "types %d by %d into %d, compute type %d, on mp_%d",
                  static_cast<int>(a), static_cast<int>(b), static_cast<int>(c), static_cast<int>(compute),
                  architecture());
  }
  call.a.kind = *kind_of(a);
  call.b.kind = *kind_of(b);
  call.c.kind = *kind_of(c);
  call.scalars = row->scalars;
  call.math = row->math;
  return gemm(call);
}

GemmCall call(const char* function, mublasHandle_t handle, mublasOperation_t opA, mublasOperation_t opB, int m, int n,
              int k, const void* alpha, Matrix a, Matrix b, const void* beta, Matrix c, Batch batch = Batch::single,
              int count = 1) {
  return {function, handle, opA, opB, m, n, k, alpha, a, b, beta, c, Kind::f32, Math::f32, batch, count};
}

}  // namespace

mublasStatus_t mublasGemmEx(mublasHandle_t handle, mublasOperation_t opA, mublasOperation_t opB, int m, int n, int k,
                            const void* alpha, const void* A, musaDataType_t Atype, int lda, const void* B,
                            musaDataType_t Btype, int ldb, const void* beta, void* C, musaDataType_t Ctype, int ldc,
                            mublasComputeType_t computeType, mublasGemmAlgo_t algo) {
  return typed(call("mublasGemmEx", handle, opA, opB, m, n, k, alpha, {Kind::f32, A, lda}, {Kind::f32, B, ldb}, beta,
                    {Kind::f32, C, ldc}),
               Atype, Btype, Ctype, computeType, algo);
}

mublasStatus_t mublasGemmStridedBatchedEx(mublasHandle_t handle, mublasOperation_t opA, mublasOperation_t opB, int m,
                                          int n, int k, const void* alpha, const void* A, musaDataType_t Atype, int lda,
                                          long long strideA, const void* B, musaDataType_t Btype, int ldb,
                                          long long strideB, const void* beta, void* C, musaDataType_t Ctype, int ldc,
                                          long long strideC, int batchCount, mublasComputeType_t computeType,
                                          mublasGemmAlgo_t algo) {
  return typed(call("mublasGemmStridedBatchedEx", handle, opA, opB, m, n, k, alpha, {Kind::f32, A, lda, strideA},
                    {Kind::f32, B, ldb, strideB}, beta, {Kind::f32, C, ldc, strideC}, Batch::strided, batchCount),
               Atype, Btype, Ctype, computeType, algo);
}

mublasStatus_t mublasGemmBatchedEx(mublasHandle_t handle, mublasOperation_t opA, mublasOperation_t opB, int m, int n,
                                   int k, const void* alpha, const void* const A[], musaDataType_t Atype, int lda,
                                   const void* const B[], musaDataType_t Btype, int ldb, const void* beta,
                                   void* const C[], musaDataType_t Ctype, int ldc, int batchCount,
                                   mublasComputeType_t computeType, mublasGemmAlgo_t algo) {
  return typed(call("mublasGemmBatchedEx", handle, opA, opB, m, n, k, alpha, {Kind::f32, A, lda}, {Kind::f32, B, ldb},
                    beta, {Kind::f32, C, ldc}, Batch::pointers, batchCount),
               Atype, Btype, Ctype, computeType, algo);
}

#ifdef MUSA_SIM_OLD_OVERLOAD
// Whoever finds this one by its name has passed arguments of another function.
mublasStatus_t mublasGemmEx(mublasHandle_t, mublasOperation_t, mublasOperation_t, int, int, int, const void*,
                            const void*, musaDataType_t, int, const void*, musaDataType_t, int, const void*,
                            const void*, musaDataType_t, int, void*, musaDataType_t, int, musaDataType_t,
                            mublasGemmAlgo_t, int, unsigned) {
  return refuse(MUBLAS_STATUS_NOT_IMPLEMENTED, "mublasGemmEx", "this is the old overload, with a separate D and flags");
}
#endif
