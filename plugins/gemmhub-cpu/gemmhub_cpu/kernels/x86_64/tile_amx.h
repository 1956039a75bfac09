// The loop of the micro-kernels for AMX: 32 x 32 results in four tiles, two tiles of a and two of b at a time. MULTIPLY is
// the instruction. Tiles 0 to 3 are sums, 4 and 5 hold a, 6 and 7 b.
//
// The processor renames tiles: each load is issued ahead of the products that wait for it, across steps and micro-tiles, so
// that the order within a step does not count, nor do prefetches, as the panel of b stays in the L1 cache and a comes from
// L2. What counts is the depth of a block of k: of 128 words a panel of b takes 16 KiB of L1, and that of a as much.
#pragma once

#include "amx.h"

#include <cstring>

#include "../unit.h"

namespace {

struct Rows {           // of a, for two tiles
  const char* at;
  int64_t stride, step;  // bytes from row to row, and to the next 16 words
};

// Of the products by `words` words of a and b, one or two tiles down.
template <bool kTall>
inline void multiply_words(const Rows& rows, const uint32_t* b, int64_t words) {
  const char *a = rows.at, *lower = a + 16 * rows.stride;
  for (; words > 0; words -= 16, a += rows.step, lower += rows.step, b += 512) {
    tile_load<6>(b, 128);
    tile_load<4>(a, rows.stride);
    MULTIPLY<0, 4, 6>();
    tile_load<7>(b + 16, 128);
    MULTIPLY<1, 4, 7>();
    if constexpr (kTall) {
      tile_load<5>(lower, rows.stride);
      MULTIPLY<2, 5, 6>();
      MULTIPLY<3, 5, 7>();
    }
  }
}

inline void multiply_tiles(const Rows& a, const uint32_t* b, int64_t words, bool first, void* out, int64_t stride,
                           int64_t rows, int64_t columns) {
  alignas(64) uint32_t edge[32 * 32];  // where the micro-tile is not whole
  char* to = static_cast<char*>(out);
  int64_t bytes = 4 * stride;
  const bool whole = rows == 32 && columns == 32;
  if (!whole) {
    if (!first)
      for (int64_t i = 0; i < rows; ++i) std::memcpy(edge + 32 * i, to + i * bytes, 4 * columns);
    to = reinterpret_cast<char*>(edge);
    bytes = 4 * 32;
  }
  const bool tall = rows > 16;
  if (first) {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  } else {
    tile_load<0>(to, bytes);
    tile_load<1>(to + 64, bytes);
    if (tall) {
      tile_load<2>(to + 16 * bytes, bytes);
      tile_load<3>(to + 16 * bytes + 64, bytes);
    }
  }
  tall ? multiply_words<true>(a, b, words) : multiply_words<false>(a, b, words);
  tile_store<0>(to, bytes);
  tile_store<1>(to + 64, bytes);
  if (tall) {
    tile_store<2>(to + 16 * bytes, bytes);
    tile_store<3>(to + 16 * bytes + 64, bytes);
  }
  if (!whole)
    for (int64_t i = 0; i < rows; ++i) std::memcpy(static_cast<char*>(out) + i * 4 * stride, edge + 32 * i, 4 * columns);
}

void multiply_32x32(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t*, bool first, void* out,
                    int64_t stride, int64_t rows, int64_t columns) {
  multiply_tiles({reinterpret_cast<const char*>(a), 64, 2048}, b, words, first, out, stride, rows, columns);
}

void multiply_32_rows(const char* a, int64_t a_stride, const uint32_t* b, int64_t words, bool first, void* out,
                      int64_t stride, int64_t columns) {
  multiply_tiles({a, a_stride, 64}, b, words, first, out, stride, 32, columns);
}

}  // namespace
