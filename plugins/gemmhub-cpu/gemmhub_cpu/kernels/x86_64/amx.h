// The tile instructions of AMX, or, with GEMMHUB_MODEL_AMX, a model of them in plain C++ for tests on other CPUs.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

#ifdef GEMMHUB_MODEL_AMX

struct ModelTile {
  uint32_t words[16][16];
};
thread_local ModelTile model_tiles[8];

inline void model_load(int tile, const void* from, int64_t stride) {
  for (int i = 0; i < 16; ++i) std::memcpy(model_tiles[tile].words[i], static_cast<const char*>(from) + i * stride, 64);
}
inline void model_store(int tile, void* to, int64_t stride) {
  for (int i = 0; i < 16; ++i) std::memcpy(static_cast<char*>(to) + i * stride, model_tiles[tile].words[i], 64);
}
inline uint32_t model_int8(uint32_t sum, uint32_t a, uint32_t b) {
  for (int i = 0; i < 32; i += 8)
    sum += static_cast<uint32_t>(static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i));
  return sum;
}
inline uint32_t model_bfloat16(uint32_t sum, uint32_t a, uint32_t b) {
  float value, left, right;
  std::memcpy(&value, &sum, 4);
  for (int i = 0; i < 32; i += 16) {
    const uint32_t wide_a = (a >> i) << 16, wide_b = (b >> i) << 16;
    std::memcpy(&left, &wide_a, 4);
    std::memcpy(&right, &wide_b, 4);
    value += left * right;
  }
  std::memcpy(&sum, &value, 4);
  return sum;
}
template <uint32_t (*kAdd)(uint32_t, uint32_t, uint32_t)>
void model_multiply(int c, int a, int b) {
  for (int i = 0; i < 16; ++i)
    for (int q = 0; q < 16; ++q)
      for (int j = 0; j < 16; ++j)
        model_tiles[c].words[i][j] =
            kAdd(model_tiles[c].words[i][j], model_tiles[a].words[i][q], model_tiles[b].words[q][j]);
}

#define TILE_ZERO(t) std::memset(&model_tiles[t], 0, sizeof(ModelTile))
#define TILE_LOAD(t, from, stride) model_load(t, from, stride)
#define TILE_STORE(t, to, stride) model_store(t, to, stride)
#define TILE_INT8(c, a, b) model_multiply<model_int8>(c, a, b)
#define TILE_BFLOAT16(c, a, b) model_multiply<model_bfloat16>(c, a, b)
inline void configure_tiles() {}
inline void release_tiles() {}

#else

#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define TILE_INT8(c, a, b) _tile_dpbssd(c, a, b)
#define TILE_BFLOAT16(c, a, b) _tile_dpbf16ps(c, a, b)

inline void configure_tiles() {
  alignas(64) uint8_t configuration[64] = {1};  // palette 1
  for (int i = 0; i < 8; ++i) {
    configuration[16 + 2 * i] = 64;  // bytes of a row
    configuration[48 + i] = 16;      // rows
  }
  _tile_loadconfig(configuration);
}
inline void release_tiles() { _tile_release(); }

#endif

}  // namespace
