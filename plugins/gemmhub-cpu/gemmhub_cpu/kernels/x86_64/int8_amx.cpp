// int8 by AMX: signed by signed bytes, sums of 32 bits that wrap.
#pragma GCC target("avx2,f16c")
#define MULTIPLY tile_int8
#include "tile_amx.h"

const gemmhub::Unit gemmhub::kInt8Amx = {Word::kInt8x4, 32, 32, 16, 128, Order::kBlocks, Order::kWords,
    nullptr, multiply_32x32, configure_tiles, release_tiles, multiply_32_rows};
