// bfloat16 by AMX, sums in float32. It reads subnormal operands as 0 and flushes subnormal results.
#pragma GCC target("avx2,f16c")
#define MULTIPLY tile_bfloat16
#include "tile_amx.h"

const gemmhub::Unit gemmhub::kBfloat16Amx = {Word::kBfloat16x2, 32, 32, 16, 128, Order::kBlocks, Order::kWords,
    nullptr, multiply_32x32, configure_tiles, release_tiles, multiply_32_rows};
