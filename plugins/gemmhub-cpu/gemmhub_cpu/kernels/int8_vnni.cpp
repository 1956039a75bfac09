// int8 x int8 -> int32 by AVX-512 VNNI: packing of both operands, and a micro-kernel of 8 x 48 results.
//
// vpdpbusd multiplies unsigned by signed bytes. So b is packed as b + 128, unsigned, and the accumulators of a row
// begin at -128 times the sum of that row of a. Everything wraps modulo 2^32, so that the result is exact whenever the
// true one fits in int32, and otherwise what integers of 32 bits give.
//
// Packed b: panels of 48 columns; of each, for four elements along k at a time, 48 x 4 bytes. Packed a: micro-panels of
// 8 rows; of each, 8 x 4 bytes. The K remainder of a is zero, so that what b has there does not count.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kRows = 8;          // of a micro-tile
constexpr int kColumns = 48;      // of a micro-tile: three vectors of 16 results
constexpr int kVectors = kColumns / 16;
constexpr int64_t kBlockK = 768;  // a panel of b this deep is 36 KiB, which L1 and L2 hold beside the rows of a
constexpr int64_t kBlockM = 128;  // rows of a packed at a time: 96 KiB, in L2

int64_t quads(int64_t k) { return (k + 3) / 4; }

// 8 rows of a, from column `begin` on, `count` of them; the sums of the rows go to `sums`.
void pack_a(const int8_t* a, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t count, int8_t* packed,
            int32_t* sums) {
  const int64_t whole = count / 4;
  for (int row = 0; row < kRows; ++row) {
    int8_t* to = packed + 4 * row;
    int32_t sum = 0;
    if (row >= rows) {
      for (int64_t q = 0; q < quads(count); ++q) std::memset(to + q * 4 * kRows, 0, 4);
    } else {
      const int8_t* from = a + row * row_stride;
      if (column_stride == 1) {
        for (int64_t q = 0; q < whole; ++q) std::memcpy(to + q * 4 * kRows, from + 4 * q, 4);
        for (int64_t i = 0; i < count; ++i) sum += from[i];
      } else {
        for (int64_t q = 0; q < whole; ++q)
          for (int i = 0; i < 4; ++i) sum += (to[q * 4 * kRows + i] = from[(4 * q + i) * column_stride]);
        for (int64_t i = 4 * whole; i < count; ++i) sum += from[i * column_stride];
      }
      if (whole < quads(count)) {
        int8_t last[4] = {0, 0, 0, 0};
        for (int64_t i = 4 * whole; i < count; ++i) last[i - 4 * whole] = from[i * column_stride];
        std::memcpy(to + whole * 4 * kRows, last, 4);
      }
    }
    sums[row] = sum;
  }
}

// Four rows of 16 contiguous columns of b, as 16 x 4 bytes, plus 128.
inline __m512i interleaved(__m128i r0, __m128i r1, __m128i r2, __m128i r3) {
  const __m128i low = _mm_unpacklo_epi8(r0, r1), high = _mm_unpackhi_epi8(r0, r1);
  const __m128i low2 = _mm_unpacklo_epi8(r2, r3), high2 = _mm_unpackhi_epi8(r2, r3);
  __m512i all = _mm512_castsi128_si512(_mm_unpacklo_epi16(low, low2));
  all = _mm512_inserti32x4(all, _mm_unpackhi_epi16(low, low2), 1);
  all = _mm512_inserti32x4(all, _mm_unpacklo_epi16(high, high2), 2);
  all = _mm512_inserti32x4(all, _mm_unpackhi_epi16(high, high2), 3);
  return _mm512_xor_si512(all, _mm512_set1_epi8(static_cast<char>(0x80)));
}

void pack_panel(const int8_t* b, int64_t row_stride, int64_t column_stride, int64_t columns, int64_t k,
                uint8_t* packed) {
  for (int64_t q = 0; q < quads(k); ++q, packed += 4 * kColumns) {
    const int64_t rows = k - 4 * q < 4 ? k - 4 * q : 4;
    const int8_t* from = b + 4 * q * row_stride;
    if (column_stride == 1) {
      for (int v = 0; v < kVectors; ++v) {
        const int64_t left = columns - 16 * v;
        const __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
        __m128i row[4];
        for (int i = 0; i < 4; ++i)
          row[i] = i < rows ? _mm_maskz_loadu_epi8(mask, from + i * row_stride + 16 * v) : _mm_setzero_si128();
        _mm512_storeu_si512(packed + 64 * v, interleaved(row[0], row[1], row[2], row[3]));
      }
    } else {
      for (int64_t j = 0; j < kColumns; ++j)
        for (int64_t i = 0; i < 4; ++i)
          packed[4 * j + i] =
              static_cast<uint8_t>((j < columns && i < rows ? from[i * row_stride + j * column_stride] : 0) ^ 0x80);
    }
  }
}

// Stores a row of a micro-tile, added to what is there unless `first`.
inline void store(__m512i sum, int32_t* at, int64_t left, bool first) {
  if (left <= 0) return;
  const __mmask16 mask = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
  if (!first) sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(mask, at));
  _mm512_mask_storeu_epi32(at, mask, sum);
}

inline __m512i start(int32_t sum) { return _mm512_set1_epi32(static_cast<int32_t>(-128u * static_cast<uint32_t>(sum))); }

// One micro-tile: `count` groups of four along k; `first`: the results begin at the sums of a, else at what is there.
// The accumulators are 24 variables, not an array, which the compiler would keep in memory, too.
void tile(const int8_t* a, const uint8_t* b, int64_t count, const int32_t* sums, bool first, int32_t* out,
          int64_t stride, int64_t rows, int64_t columns) {
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define BEGIN(i) __m512i x##i = start(sums[i]), y##i = x##i, z##i = x##i;
  EACH_ROW(BEGIN)
  for (int64_t q = 0; q < count; ++q, a += 4 * kRows, b += 4 * kColumns) {
    const __m512i x = _mm512_loadu_si512(b), y = _mm512_loadu_si512(b + 64), z = _mm512_loadu_si512(b + 128);
#define MULTIPLY(i)                                \
  {                                                \
    int32_t left;                                  \
    std::memcpy(&left, a + 4 * i, 4);              \
    const __m512i all = _mm512_set1_epi32(left);   \
    x##i = _mm512_dpbusd_epi32(x##i, x, all);      \
    y##i = _mm512_dpbusd_epi32(y##i, y, all);      \
    z##i = _mm512_dpbusd_epi32(z##i, z, all);      \
  }
    EACH_ROW(MULTIPLY)
  }
#define STORE(i)                                                 \
  if (i < rows) {                                                \
    store(x##i, out + i * stride, columns, first);               \
    store(y##i, out + i * stride + 16, columns - 16, first);     \
    store(z##i, out + i * stride + 32, columns - 32, first);     \
  }
  EACH_ROW(STORE)
#undef EACH_ROW
#undef BEGIN
#undef MULTIPLY
#undef STORE
}

}  // namespace

extern "C" {

// Bytes of the packed form of b (k, n).
int64_t gemmhub_int8_packed_bytes(int64_t n, int64_t k) {
  return (n + kColumns - 1) / kColumns * quads(k) * 4 * kColumns;
}

int64_t gemmhub_int8_panel_columns() { return kColumns; }

// Panels [first, last) of b (k, n) into `packed`, which has room for all of them. Strides are in bytes.
void gemmhub_int8_pack(const int8_t* b, int64_t row_stride, int64_t column_stride, int64_t n, int64_t k, int64_t first,
                       int64_t last, uint8_t* packed) {
  for (int64_t p = first; p < last; ++p) {
    const int64_t columns = n - p * kColumns < kColumns ? n - p * kColumns : kColumns;
    pack_panel(b + p * kColumns * column_stride, row_stride, column_stride, columns, k,
               packed + p * quads(k) * 4 * kColumns);
  }
}

// out (m, n) = a (m, k) @ b, packed. `stride` is that of the rows of out, in elements; those of a are in bytes.
void gemmhub_int8_multiply(const int8_t* a, int64_t row_stride, int64_t column_stride, const uint8_t* packed,
                           int32_t* out, int64_t stride, int64_t m, int64_t n, int64_t k) {
  alignas(64) int8_t rows_of_a[kBlockM * kBlockK];
  int32_t sums[kBlockM];
  const int64_t panel = quads(k) * 4 * kColumns;
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i) std::memset(out + i * stride, 0, 4 * n);
    return;
  }
  for (int64_t at_m = 0; at_m < m; at_m += kBlockM) {
    const int64_t some = m - at_m < kBlockM ? m - at_m : kBlockM;
    for (int64_t at_k = 0; at_k < k; at_k += kBlockK) {
      const int64_t deep = k - at_k < kBlockK ? k - at_k : kBlockK;
      const int64_t micro = quads(deep) * 4 * kRows;
      for (int64_t i = 0; i < some; i += kRows)
        pack_a(a + (at_m + i) * row_stride + at_k * column_stride, row_stride, column_stride, some - i, deep,
               rows_of_a + i / kRows * micro, sums + i);
      for (int64_t j = 0; j < n; j += kColumns) {
        const uint8_t* b = packed + j / kColumns * panel + at_k * kColumns;
        for (int64_t i = 0; i < some; i += kRows)
          tile(rows_of_a + i / kRows * micro, b, quads(deep), sums + i, at_k == 0, out + (at_m + i) * stride + j,
               stride, some - i < kRows ? some - i : kRows, n - j < kColumns ? n - j : kColumns);
      }
    }
  }
}

}  // extern "C"
