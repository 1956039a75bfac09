// The functions for one type each: S, D, C and Z, single and batched, and the single half-precision one.
#include "gemm.h"

using namespace musa_double;

namespace {

template <class T>
constexpr Kind kind = Kind::f32;
template <>
constexpr Kind kind<double> = Kind::f64;
template <>
constexpr Kind kind<muComplex> = Kind::c32;
template <>
constexpr Kind kind<muDoubleComplex> = Kind::c64;

template <class T>
constexpr Math math = Math::f32;
template <>
constexpr Math math<double> = Math::f64;
template <>
constexpr Math math<muComplex> = Math::c32;
template <>
constexpr Math math<muDoubleComplex> = Math::c64;

}  // namespace

#define TYPED_GEMM(LETTER, T)                                                                                       \
  mublasStatus_t mublas##LETTER##gemm(mublasHandle_t handle, mublasOperation_t opA, mublasOperation_t opB, int m,   \
                                      int n, int k, const T* alpha, const T* A, int lda, const T* B, int ldb,       \
                                      const T* beta, T* C, int ldc) {                                               \
    return gemm({"mublas" #LETTER "gemm",                                                                           \
                 handle,                                                                                            \
                 opA,                                                                                               \
                 opB,                                                                                               \
                 m,                                                                                                 \
                 n,                                                                                                 \
                 k,                                                                                                 \
                 alpha,                                                                                             \
                 {kind<T>, A, lda},                                                                                 \
                 {kind<T>, B, ldb},                                                                                 \
                 beta,                                                                                              \
                 {kind<T>, C, ldc},                                                                                 \
                 kind<T>,                                                                                           \
                 math<T>});                                                                                         \
  }                                                                                                                 \
  mublasStatus_t mublas##LETTER##gemmStridedBatched(                                                                \
      mublasHandle_t handle, mublasOperation_t opA, mublasOperation_t opB, int m, int n, int k, const T* alpha,     \
      const T* A, int lda, long long strideA, const T* B, int ldb, long long strideB, const T* beta, T* C, int ldc, \
      long long strideC, int batchCount) {                                                                          \
    return gemm({"mublas" #LETTER "gemmStridedBatched",                                                             \
                 handle,                                                                                            \
                 opA,                                                                                               \
                 opB,                                                                                               \
                 m,                                                                                                 \
                 n,                                                                                                 \
                 k,                                                                                                 \
                 alpha,                                                                                             \
                 {kind<T>, A, lda, strideA},                                                                        \
                 {kind<T>, B, ldb, strideB},                                                                        \
                 beta,                                                                                              \
                 {kind<T>, C, ldc, strideC},                                                                        \
                 kind<T>,                                                                                           \
                 math<T>,                                                                                           \
                 Batch::strided,                                                                                    \
                 batchCount});                                                                                      \
  }                                                                                                                 \
  mublasStatus_t mublas##LETTER##gemmBatched(mublasHandle_t handle, mublasOperation_t opA, mublasOperation_t opB,   \
                                             int m, int n, int k, const T* alpha, const T* const A[], int lda,      \
                                             const T* const B[], int ldb, const T* beta, T* const C[], int ldc,     \
                                             int batchCount) {                                                      \
    return gemm({"mublas" #LETTER "gemmBatched",                                                                    \
                 handle,                                                                                            \
                 opA,                                                                                               \
                 opB,                                                                                               \
                 m,                                                                                                 \
                 n,                                                                                                 \
                 k,                                                                                                 \
                 alpha,                                                                                             \
                 {kind<T>, A, lda},                                                                                 \
                 {kind<T>, B, ldb},                                                                                 \
                 beta,                                                                                              \
                 {kind<T>, C, ldc},                                                                                 \
                 kind<T>,                                                                                           \
                 math<T>,                                                                                           \
                 Batch::pointers,                                                                                   \
                 batchCount});                                                                                      \
  }

extern "C" {

TYPED_GEMM(S, float)
TYPED_GEMM(D, double)
TYPED_GEMM(C, muComplex)
TYPED_GEMM(Z, muDoubleComplex)

// The header declares this for mcc only; the type of the scalars is half.
__attribute__((visibility("default"))) mublasStatus_t mublasHgemm(mublasHandle_t handle, mublasOperation_t opA,
                                                                  mublasOperation_t opB, int m, int n, int k,
                                                                  const void* alpha, const void* A, int lda,
                                                                  const void* B, int ldb, const void* beta, void* C,
                                                                  int ldc) {
  if (architecture() < mp_22) return refuse(MUBLAS_STATUS_NOT_IMPLEMENTED, "mublasHgemm", "mp_%d", architecture());
  return gemm({"mublasHgemm",
               handle,
               opA,
               opB,
               m,
               n,
               k,
               alpha,
               {Kind::f16, A, lda},
               {Kind::f16, B, ldb},
               beta,
               {Kind::f16, C, ldc},
               Kind::f16,
               Math::f16});
}

}  // extern "C"
