#include "openblas.h"

#include <dlfcn.h>

#include <cstdio>

namespace musa_double {
namespace {

constexpr int column_major = 102, no_transpose = 111;

template <class Scalar, class T>
using Gemm = void (*)(int, int, int, int, int, int, Scalar, const T*, int, const T*, int, Scalar, T*, int);

struct OpenBlas {
  Gemm<float, float> sgemm = nullptr;
  Gemm<double, double> dgemm = nullptr;
  Gemm<const void*, void> cgemm = nullptr, zgemm = nullptr;

  OpenBlas() {
    void* library = dlopen(MUSA_SIM_OPENBLAS, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      std::fprintf(stderr, "gemmhub-musa-sim: no OpenBLAS: %s\n", dlerror());
      return;
    }
    // One thread: a double is for checking, and must leave the cores to the tests.
    if (auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "scipy_openblas_set_num_threads")))
      set_threads(1);
    sgemm = reinterpret_cast<decltype(sgemm)>(dlsym(library, "scipy_cblas_sgemm"));
    dgemm = reinterpret_cast<decltype(dgemm)>(dlsym(library, "scipy_cblas_dgemm"));
    cgemm = reinterpret_cast<decltype(cgemm)>(dlsym(library, "scipy_cblas_cgemm"));
    zgemm = reinterpret_cast<decltype(zgemm)>(dlsym(library, "scipy_cblas_zgemm"));
  }
};

const OpenBlas& blas() {
  static const OpenBlas opened;
  return opened;
}

int at_least_one(int size) { return size > 0 ? size : 1; }

template <class Scalar, class T>
bool call(Gemm<Scalar, T> gemm, int m, int n, int k, Scalar one, Scalar zero, const T* a, const T* b, T* c) {
  if (!gemm) return false;
  gemm(column_major, no_transpose, no_transpose, m, n, k, one, a, at_least_one(m), b, at_least_one(k), zero, c,
       at_least_one(m));
  return true;
}

}  // namespace

bool multiply(int m, int n, int k, const float* a, const float* b, float* c) {
  return call<float, float>(blas().sgemm, m, n, k, 1.0f, 0.0f, a, b, c);
}

bool multiply(int m, int n, int k, const double* a, const double* b, double* c) {
  return call<double, double>(blas().dgemm, m, n, k, 1.0, 0.0, a, b, c);
}

bool multiply(int m, int n, int k, const std::complex<float>* a, const std::complex<float>* b, std::complex<float>* c) {
  const std::complex<float> one = 1, zero = 0;
  return call<const void*, void>(blas().cgemm, m, n, k, &one, &zero, a, b, c);
}

bool multiply(int m, int n, int k, const std::complex<double>* a, const std::complex<double>* b,
              std::complex<double>* c) {
  const std::complex<double> one = 1, zero = 0;
  return call<const void*, void>(blas().zgemm, m, n, k, &one, &zero, a, b, c);
}

}  // namespace musa_double
