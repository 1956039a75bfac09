// Arithmetic of sizes.
#pragma once

#include <cstdint>

namespace gemmhub {

inline int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }
inline int64_t max(int64_t x, int64_t y) { return x > y ? x : y; }
inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

}  // namespace gemmhub
