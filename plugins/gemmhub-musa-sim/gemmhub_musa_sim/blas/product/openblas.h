// The BLAS under the stub libraries: column-major C = A B by OpenBLAS, opened at the first product.
#pragma once

#include <complex>

namespace musa_double {

// C (m by n) = A (m by k) B (k by n), all packed. False when OpenBLAS cannot be opened.
bool multiply(int m, int n, int k, const float* a, const float* b, float* c);
bool multiply(int m, int n, int k, const double* a, const double* b, double* c);
bool multiply(int m, int n, int k, const std::complex<float>* a, const std::complex<float>* b, std::complex<float>* c);
bool multiply(int m, int n, int k, const std::complex<double>* a, const std::complex<double>* b,
              std::complex<double>* c);

}  // namespace musa_double
