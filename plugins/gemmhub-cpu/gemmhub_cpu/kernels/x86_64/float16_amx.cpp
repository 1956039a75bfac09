// float16 by AMX-FP16, sums in float32. It reads subnormal operands, whose products are no subnormals in float32.
#pragma GCC target("avx2,f16c")
#include "encoded.h"
#define MULTIPLY tile_float16
#include "tile_amx.h"

const gemmhub::Unit gemmhub::kFloat16Amx = {Word::kFloat16x2, 32, 32, 16, 256, Order::kBlocks, Order::kWords,
    nullptr, multiply_32x32, configure_tiles, release_tiles, multiply_32_rows};
