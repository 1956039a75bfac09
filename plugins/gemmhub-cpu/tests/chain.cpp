// Sums of products in one chain of fused multiply-adds along k from +0: the reference for pinned floats. Matrices are
// contiguous, row by row.
#include <cmath>
#include <cstdint>

namespace {

template <class Float>
void multiply(int64_t m, int64_t n, int64_t k, const Float* a, const Float* b, Float* out) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      Float sum = 0;
      for (int64_t q = 0; q < k; ++q) sum = std::fma(a[i * k + q], b[q * n + j], sum);
      out[i * n + j] = sum;
    }
}

}  // namespace

extern "C" {

void chain_float32(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* out) { multiply(m, n, k, a, b, out); }
void chain_float64(int64_t m, int64_t n, int64_t k, const double* a, const double* b, double* out) {
  multiply(m, n, k, a, b, out);
}

}  // extern "C"
