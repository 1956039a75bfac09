// The loop of the micro-kernels for AMX: 32 x 32 results in four tiles, two tiles of a and two of b at a time. MULTIPLY is
// the instruction. Tiles 0 to 3 are sums, 4 and 5 hold a, 6 and 7 b.
#pragma once

#include "amx.h"

#include <cstring>

#include "../unit.h"

namespace {

void multiply_32x32(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t*, bool first, void* out,
                    int64_t stride, int64_t rows, int64_t columns) {
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
  for (int64_t q = 0; q < words; q += 16, a += 512, b += 512) {
    tile_load<4>(a, 64);
    tile_load<6>(b, 128);
    tile_load<7>(b + 16, 128);
    MULTIPLY<0, 4, 6>();
    MULTIPLY<1, 4, 7>();
    if (tall) {
      tile_load<5>(a + 256, 64);
      MULTIPLY<2, 5, 6>();
      MULTIPLY<3, 5, 7>();
    }
  }
  tile_store<0>(to, bytes);
  tile_store<1>(to + 64, bytes);
  if (tall) {
    tile_store<2>(to + 16 * bytes, bytes);
    tile_store<3>(to + 16 * bytes + 64, bytes);
  }
  if (!whole)
    for (int64_t i = 0; i < rows; ++i) std::memcpy(static_cast<char*>(out) + i * 4 * stride, edge + 32 * i, 4 * columns);
}

}  // namespace
