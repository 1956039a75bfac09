// The conversions of packing by NEON: 8 words, of 4 bytes, from elements of a dtype. x86_64/elements.h defines their members.
#pragma once
#include "vector.h"

namespace gemmhub {

inline void transpose_4(uint32x4_t* x, uint32x4_t* y, uint32x4_t* z, uint32x4_t* w) {
  const uint32x4x2_t s = vtrnq_u32(*x, *y), t = vtrnq_u32(*z, *w);
  *x = vcombine_u32(vget_low_u32(s.val[0]), vget_low_u32(t.val[0]));
  *y = vcombine_u32(vget_low_u32(s.val[1]), vget_low_u32(t.val[1]));
  *z = vcombine_u32(vget_high_u32(s.val[0]), vget_high_u32(t.val[0]));
  *w = vcombine_u32(vget_high_u32(s.val[1]), vget_high_u32(t.val[1]));
}

// 8 by 8 words.
inline void transpose(Words* v) {
  transpose_4(&v[0].low, &v[1].low, &v[2].low, &v[3].low);
  transpose_4(&v[0].high, &v[1].high, &v[2].high, &v[3].high);
  transpose_4(&v[4].low, &v[5].low, &v[6].low, &v[7].low);
  transpose_4(&v[4].high, &v[5].high, &v[6].high, &v[7].high);
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t moved = v[i].high;
    v[i].high = v[i + 4].low;
    v[i + 4].low = moved;
  }
}

template <class From>
inline void transpose_lanes(const char* from, int64_t stride, Words* v) {
  for (int i = 0; i < 8; ++i) v[i] = From::along_k(from + i * stride);
  transpose(v);
}

struct Bytes {  // int8 as it is
  static constexpr int kBytes = 1, kElements = 4;
  static inline Words along_k(const void* from) { return load(from); }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_lanes<Bytes>(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) {
    uint8x8_t row[4];
    for (int i = 0; i < 4; ++i) row[i] = vld1_u8(reinterpret_cast<const uint8_t*>(rows[i]));
    const uint8x8x2_t first = vzip_u8(row[0], row[1]), last = vzip_u8(row[2], row[3]);
    const uint16x4x2_t low = vzip_u16(vreinterpret_u16_u8(first.val[0]), vreinterpret_u16_u8(last.val[0]));
    const uint16x4x2_t high = vzip_u16(vreinterpret_u16_u8(first.val[1]), vreinterpret_u16_u8(last.val[1]));
    return {vreinterpretq_u32_u16(vcombine_u16(low.val[0], low.val[1])),
            vreinterpretq_u32_u16(vcombine_u16(high.val[0], high.val[1]))};
  }
  static inline void along_16_lanes(const char* const* rows, Words* first, Words* last) {
    const char* const others[4] = {rows[0] + 8, rows[1] + 8, rows[2] + 8, rows[3] + 8};
    *first = along_lanes(rows), *last = along_lanes(others);
  }
};
inline uint8x8_t load_bytes(const void* from) { return vld1_u8(static_cast<const uint8_t*>(from)); }
template <int64_t kDtype>
struct Decoded {  // int8 and float8 to bfloat16
  static constexpr int kBytes = 1, kElements = 2;
  static inline uint32x4_t halves(uint8x8_t bytes) {
    const Words v = bits(of_bytes<kDtype>(bytes));
    return vreinterpretq_u32_u16(vcombine_u16(vshrn_n_u32(v.low, 16), vshrn_n_u32(v.high, 16)));
  }
  static inline Words along_k(const void* from) {
    const uint8_t* const at = static_cast<const uint8_t*>(from);
    return {halves(vld1_u8(at)), halves(vld1_u8(at + 8))};
  }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_lanes<Decoded>(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) {
    const uint8x8x2_t both = vzip_u8(load_bytes(rows[0]), load_bytes(rows[1]));
    return {halves(both.val[0]), halves(both.val[1])};
  }
};
template <int64_t kDtype>
struct WidenedByte {  // int8 and float8 to float32
  static constexpr int kBytes = 1, kElements = 1;
  static inline Words along_k(const void* from) { return bits(of_bytes<kDtype>(load_bytes(from))); }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_lanes<WidenedByte>(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) { return along_k(rows[0]); }
};
struct Halves {  // 16-bit floats as they are
  static constexpr int kBytes = 2, kElements = 2;
  static inline Words along_k(const void* from) { return load(from); }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_lanes<Halves>(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) {
    const uint16x8x2_t both = vzipq_u16(load_16(rows[0]), load_16(rows[1]));
    return {vreinterpretq_u32_u16(both.val[0]), vreinterpretq_u32_u16(both.val[1])};
  }
};
template <int64_t kDtype>
struct Widened {  // to float32; of words as they are
  static constexpr int kBytes = kDtype == kFloat32 ? 4 : 2, kElements = 1;
  static inline Words along_k(const void* from) { return bits(wide<kDtype>(from)); }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_lanes<Widened>(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) { return along_k(rows[0]); }
};

inline void store_last_half(void* to, Words v) { vst1q_u8(static_cast<uint8_t*>(to), vreinterpretq_u8_u32(v.high)); }
inline Words spread_bytes(uint32_t value) { return {vdupq_n_u32(0x01010101 * value), vdupq_n_u32(0x01010101 * value)}; }
inline Words exclusive_or(Words x, Words y) { return {veorq_u32(x.low, y.low), veorq_u32(x.high, y.high)}; }

// Words of two vectors in turn: what pairs of words are packed by.
inline void interleave(const Words& x, const Words& y, Words* first, Words* last) {
  *first = {vzip1q_u32(x.low, y.low), vzip2q_u32(x.low, y.low)};
  *last = {vzip1q_u32(x.high, y.high), vzip2q_u32(x.high, y.high)};
}

}  // namespace gemmhub
