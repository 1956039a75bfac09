// The tile instructions of AMX, as asm statements that name all that they read and write.
//
// The intrinsics of GCC 12 do not: its _tile_loadconfig reads 8 of the 64 bytes of a configuration, so that the stores of the
// others are dropped, and its _tile_loadd clobbers no memory. GCC knows no names of tile registers to list as clobbers, and
// no compiler uses these registers by itself; what keeps the statements in their order is that all are volatile. An assembler
// from before AMX (binutils 2.34) refuses the mnemonics: the library is then not compiled, and the reason is shown.
#pragma once

#include <cstdint>

namespace {

// The operand of ldtilecfg.
struct TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64, "ldtilecfg reads 64 bytes");

// Eight tiles of 16 rows of 64 bytes. Constant: no store is there to be dropped or moved.
constexpr TileConfiguration kTiles = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

inline void configure_tiles() { asm volatile("ldtilecfg %0" : : "m"(kTiles)); }
inline void release_tiles() { asm volatile("tilerelease" : :); }

template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// 16 rows of 64 bytes, `stride` bytes apart: memory that no operand of an asm statement can describe.
template <int kTile>
inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
}
template <int kTile>
inline void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
}
// Tile kC += tile kA @ tile kB.
template <int kC, int kA, int kB>
inline void tile_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
template <int kC, int kA, int kB>
inline void tile_bfloat16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace
