// Blocks of 8 lanes by 8 words are loaded along the dimension that is contiguous in memory, converted, and transposed where
// the packed form is contiguous along the other one. What is contiguous along neither, and what is left at the edges, goes
// through a small buffer.
#include "vector.h"

#include <cstring>

#include "pack.h"

namespace {

using namespace gemmhub;

template <int64_t kDtype>
struct Widened {  // to float32
  static constexpr int kBytes = kDtype == kFloat32 ? 4 : 2, kElements = 1;
  static inline Words along_k(const void* from) { return bits(wide<kDtype>(from)); }
  static inline Words along_lanes(const void* const* rows) { return along_k(rows[0]); }
};

// Word `q` of 8 lanes, or of fewer, contiguous along the lanes; elements from `k` on are 0.
template <class From>
inline Words word_at_the_edge(const Source& source, int64_t lanes, int64_t k, int64_t q) {
  alignas(32) char edge[From::kElements][32] = {};
  const void* rows[From::kElements];
  for (int i = 0; i < From::kElements; ++i) {
    const int64_t at = q * From::kElements + i;
    if (at < k) std::memcpy(edge[i], source.data + at * source.k_stride, lanes * From::kBytes);
    rows[i] = edge[i];
  }
  return From::along_lanes(rows);
}

// 8 words of the lane at `from`, of which `count` elements are there, whatever their stride.
template <class From>
inline Words lane_at_the_edge(const char* from, int64_t stride, int64_t count) {
  alignas(32) char edge[32] = {};
  if (stride == From::kBytes)
    std::memcpy(edge, from, count * From::kBytes);
  else
    for (int64_t i = 0; i < count; ++i) std::memcpy(edge + i * From::kBytes, from + i * stride, From::kBytes);
  return From::along_k(edge);
}

// 8 lanes by 8 words: v[i] holds the words of lane i where `by_lane`, else word i of the lanes. Returns by_lane.
template <class From>
inline bool load_block(const Source& source, int64_t lanes, int64_t k, Words* v) {
  constexpr int kElements = From::kElements, kBytes = From::kBytes, kDeep = 8 * kElements;
  const bool whole = lanes == 8 && k >= kDeep;
  if (source.lane_stride == kBytes && source.k_stride != kBytes) {
    for (int q = 0; q < 8; ++q) {
      if (!whole) {
        v[q] = word_at_the_edge<From>(source, lanes, k, q);
        continue;
      }
      const char* at = source.data + q * kElements * source.k_stride;
      const void* rows[kElements];
      for (int i = 0; i < kElements; ++i) rows[i] = at + i * source.k_stride;
      v[q] = From::along_lanes(rows);
    }
    return false;
  }
  for (int lane = 0; lane < 8; ++lane) {
    const char* from = source.data + lane * source.lane_stride;
    if (whole && source.k_stride == kBytes)
      v[lane] = From::along_k(from);
    else if (lane < lanes)
      v[lane] = lane_at_the_edge<From>(from, source.k_stride, k < kDeep ? k : kDeep);
    else
      v[lane] = zeros();
  }
  return true;
}

// `deep` words of 8 lanes, of the last 4 where the micro-panel has no more. `to` is word q, lane `lane` of it.
inline void store_block(const Panel& panel, const Words* v, int64_t lane, int64_t deep, uint32_t* to) {
  const bool half = panel.lanes - lane < 8;
  for (int64_t i = 0; i < deep; ++i) {
    const Words words = panel.plus_128 ? plus_128(v[i]) : v[i];
    half ? store_first_half(to + i * panel.lanes, words) : store(to + i * panel.lanes, words);
  }
}

#ifdef __aarch64__
inline void store_pairs(const Panel& panel, const Words* v, int64_t lane, int64_t deep, uint32_t* to) {
  for (int64_t i = 0; i < deep; i += 2) {
    Words first, last;
    interleave(v[i], v[i + 1], &first, &last);
    uint32_t* at = to + i * panel.lanes + lane;
    store(at, first);
    if (panel.lanes - lane >= 8) store(at + 8, last);
  }
}
#endif

template <class From>
void pack_from(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  for (int64_t q = 0; q < words; q += 8) {
    const int64_t left = k - q * From::kElements;
    const int64_t deep = words - q < 8 ? words - q : 8;
    for (int64_t lane = 0; lane < panel.lanes; lane += 8) {
      const int64_t some = lanes - lane < 0 ? 0 : lanes - lane > 8 ? 8 : lanes - lane;
      const Source block = {source.data + q * From::kElements * source.k_stride + lane * source.lane_stride,
                            source.k_stride, source.lane_stride, source.dtype};
      Words v[8];
      const bool by_lane = load_block<From>(block, some, left < 0 ? 0 : left, v);
      if (by_lane != (panel.order == Order::kBlocks)) transpose(v);
      if (panel.order == Order::kBlocks) {
        uint32_t* at = to + q / 16 * 16 * panel.lanes + lane * 16 + q % 16;
        for (int i = 0; i < 8; ++i) store(at + 16 * i, v[i]);
        continue;
      }
#ifdef __aarch64__
      if (panel.order == Order::kPairs) {
        store_pairs(panel, v, lane, deep, to + q * panel.lanes + lane);
        continue;
      }
#endif
      store_block(panel, v, lane, deep, to + q * panel.lanes + lane);
    }
  }
}

}  // namespace

void gemmhub::pack(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  if (panel.word == Word::kInt8x4) return pack_from<Bytes>(panel, source, lanes, k, words, to);
#ifdef __x86_64__
  if (panel.word == Word::kInt16x2) return pack_from<WidenedBytes>(panel, source, lanes, k, words, to);
#endif
  if (panel.word == Word::kBfloat16x2) return pack_from<Halves>(panel, source, lanes, k, words, to);
  if (source.dtype == kFloat16) return pack_from<Widened<kFloat16>>(panel, source, lanes, k, words, to);
  if (source.dtype == kBfloat16) return pack_from<Widened<kBfloat16>>(panel, source, lanes, k, words, to);
  pack_from<Widened<kFloat32>>(panel, source, lanes, k, words, to);
}
