// An operand is walked in the order of its memory, by whole cache lines. Where it is contiguous along k, 8 lanes are loaded,
// transposed in registers and walked for some lines before the next 8, whose lines are prefetched meanwhile: more lanes at a
// time, with a stride of a power of 2, would evict one another's lines. Where it is contiguous along the lanes, a few of its
// rows are walked through all micro-panels. What is contiguous along neither, and the edges, go through a small buffer.
#include "pack.h"

#include <cstring>
#include <type_traits>

#include "elements.h"
#include "sizes.h"

namespace {

using namespace gemmhub;

constexpr int64_t kWalk = 256;  // words of 8 lanes that are walked before the next 8: a multiple of 16
constexpr int64_t kWordsOfRows = 4;  // of a micro-panel, from rows, before the next one: lines are written together
constexpr int64_t kRowsAhead = 32;   // of the row that is read is the one that is prefetched

// Into the L2 cache: lines of one set would evict one another from the L1 cache before they are read.
inline void prefetch(const char* from) { __builtin_prefetch(from, 0, 2); }

// Word `q` of 8 lanes, or of fewer, contiguous along the lanes; elements from `k` on are 0.
template <class From>
inline Words word_at_the_edge(const Source& source, int64_t lanes, int64_t k, int64_t q) {
  alignas(32) char edge[From::kElements][32] = {};
  const char* rows[From::kElements];
#pragma GCC unroll 8
  for (int i = 0; i < From::kElements; ++i) {
    const int64_t at = q * From::kElements + i;
    if (at < k) std::memcpy(edge[i], source.data + at * source.k_stride, lanes * From::kBytes);
    rows[i] = edge[i];
  }
  return From::along_lanes(rows);
}

// Copies `count` elements of the lane at `from`, whatever their stride.
template <class From>
inline void copy_lane(const char* from, int64_t stride, int64_t count, char* edge) {
  if (stride == From::kBytes)
    std::memcpy(edge, from, count * From::kBytes);
  else
    for (int64_t i = 0; i < count; ++i) std::memcpy(edge + i * From::kBytes, from + i * stride, From::kBytes);
}

// Where the packed form of 8 words of 8 lanes goes, and how.
struct Target {
  const Panel* panel;
  Words flipped;  // bits, for plus_128

  // A word of 8 lanes, of the last 4 where the micro-panel has no more.
  inline void put(uint32_t* at, Words word, bool half) const {
    word = exclusive_or(word, flipped);
    half ? store_first_half(at, word) : store(at, word);
  }
};

// Words q to q + 8 of lanes from `lane` on, v[i] being word i of the lanes, or with kBlocks the words of lane i.
inline void put_block(const Target& target, const Words* v, int64_t lane, int64_t q, int64_t deep, uint32_t* to) {
  const Panel& panel = *target.panel;
  if (panel.order == Order::kBlocks) {
    uint32_t* at = to + q / 16 * 16 * panel.lanes + lane * 16 + q % 16;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) store(at + 16 * i, v[i]);
    return;
  }
#ifdef __aarch64__
  if (panel.order == Order::kPairs) {
    for (int64_t i = 0; i < deep; i += 2) {
      Words first, last;
      interleave(v[i], v[i + 1], &first, &last);
      uint32_t* at = to + (q + i) * panel.lanes + 2 * lane;
      store(at, first);
      if (panel.lanes - lane >= 8) store(at + 8, last);
    }
    return;
  }
#endif
  const bool half = panel.lanes - lane < 8;
  uint32_t* at = to + q * panel.lanes + lane;
  if (deep == 8) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) target.put(at + i * panel.lanes, v[i], half);
  } else {
    for (int64_t i = 0; i < deep; ++i) target.put(at + i * panel.lanes, v[i], half);
  }
}

// The same of `block`, the operand from that lane and word on, which has `lanes` lanes and `k` elements.
template <class From>
inline void pack_block(const Target& target, const Source& block, int64_t lanes, int64_t k, int64_t lane, int64_t q,
                       int64_t deep, uint32_t* to) {
  constexpr int64_t kElements = From::kElements, kBytes = From::kBytes, kDeep = 8 * kElements;
  const bool by_lane = target.panel->order == Order::kBlocks, whole = lanes >= 8 && k >= kDeep;
  Words v[8];
  if (block.lane_stride == kBytes && block.k_stride != kBytes) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = word_at_the_edge<From>(block, min(lanes, 8), k, i);
    if (by_lane) transpose(v);
  } else if (whole && block.k_stride == kBytes) {
    if (by_lane)
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) v[i] = From::along_k(block.data + i * block.lane_stride);
    else
      From::transposed(block.data, block.lane_stride, v);
  } else {
    alignas(32) char edge[8][32] = {};
    for (int i = 0; i < min(lanes, 8); ++i)
      copy_lane<From>(block.data + i * block.lane_stride, block.k_stride, min(k, kDeep), edge[i]);
    if (by_lane)
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) v[i] = From::along_k(edge[i]);
    else
      From::transposed(edge[0], 32, v);
  }
  put_block(target, v, lane, q, deep, to);
}

// `count` blocks of 8 words of 8 lanes at `from`, contiguous along k, into a micro-panel of `width` lanes, or into two of 4
// lanes where there is a `second`; the lines of the lanes `next` bytes on are prefetched.
template <class From, bool kTwo>
inline void pack_whole_blocks(Words flipped, const char* from, int64_t stride, int64_t next, int64_t count, int64_t width,
                              uint32_t* to, uint32_t* second) {
  constexpr int64_t kStep = 8 * From::kElements * From::kBytes;
  for (int64_t i = 0; i < count; ++i, from += kStep) {
    if (i % (64 / kStep) == 0)
#pragma GCC unroll 8
      for (int lane = 0; lane < 8; ++lane) prefetch(from + next + lane * stride);
    Words v[8];
    From::transposed(from, stride, v);
#pragma GCC unroll 8
    for (int64_t q = 0; q < 8; ++q) {
      const Words word = exclusive_or(v[q], flipped);
      if constexpr (kTwo)
        store_first_half(to + q * 4, word), store_last_half(second + q * 4, word);
      else
        store(to + q * width, word);
    }
    to += 8 * width;
    if constexpr (kTwo) second += 8 * width;
  }
}

// By 8 lanes, which two micro-panels of 4 lanes share.
template <class From>
void pack_lanes(const Target& target, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  constexpr int64_t kElements = From::kElements;
  const int64_t width = target.panel->lanes, whole = k / (8 * kElements) * 8;
  const bool in_words = source.k_stride == From::kBytes && target.panel->order == Order::kWords;
  for (int64_t start = 0; start < words; start += kWalk) {
    const int64_t end = min(words, start + kWalk), count = in_words ? max(min(end, whole) - start, 0) / 8 : 0;
    const auto panel_at = [&](int64_t first) { return to + first * words; };
    const auto edge = [&](int64_t first, int64_t lane, int64_t q) {  // words from q on
      const char* const from = source.data + (first + lane) * source.lane_stride;
      for (; q < end; q += 8) {
        const Source block = {from + q * kElements * source.k_stride, source.k_stride, source.lane_stride, source.dtype};
        pack_block<From>(target, block, max(lanes - first - lane, 0), max(k - q * kElements, 0), lane, q, min(8, words - q),
                         panel_at(first));
      }
    };
    const auto blocks = [&](auto two, int64_t first, int64_t lane) {
      constexpr bool kTwo = decltype(two)::value;
      const char* const from = source.data + (first + lane) * source.lane_stride + start * kElements * From::kBytes;
      pack_whole_blocks<From, kTwo>(target.flipped, from, source.lane_stride, 8 * source.lane_stride, count, width,
                                    panel_at(first) + start * width + lane, panel_at(first + 4) + start * width);
    };
    for (int64_t first = 0; first < lanes; first += width) {
      if (width == 4 && lanes - first >= 8) {
        blocks(std::true_type(), first, 0);
        edge(first, 0, start + 8 * count);
        edge(first += 4, 0, start + 8 * count);
        continue;
      }
      for (int64_t lane = 0; lane < width; lane += 8) {
        const bool all = width - lane >= 8 && lanes - first - lane >= 8;
        if (all) blocks(std::false_type(), first, lane);
        edge(first, lane, start + (all ? 8 * count : 0));
      }
    }
  }
}

// Word `q` of the lanes of one micro-panel whose elements are all there, 8 at a time, from rows that are contiguous.
template <class From>
inline void pack_whole_row(Words flipped, const char* from, int64_t stride, int64_t count, uint32_t* to) {
  const char* rows[From::kElements];
#pragma GCC unroll 8
  for (int i = 0; i < From::kElements; ++i) rows[i] = from + i * stride;
  int64_t lane = 0;
  if constexpr (std::is_same_v<From, Bytes>) {  // twice as many at a time, by as many loads
    for (; lane + 16 <= count; lane += 16) {
      Words first, last;
      From::along_16_lanes(rows, &first, &last);
      store(to + lane, exclusive_or(first, flipped)), store(to + lane + 8, exclusive_or(last, flipped));
#pragma GCC unroll 8
      for (int i = 0; i < From::kElements; ++i) rows[i] += 16;
    }
  }
  for (; lane < count; lane += 8) {
    store(to + lane, exclusive_or(From::along_lanes(rows), flipped));
#pragma GCC unroll 8
    for (int i = 0; i < From::kElements; ++i) rows[i] += 8 * From::kBytes;
  }
}

// By rows, which are contiguous along the lanes, into micro-panels of words: a few words of each micro-panel at a time.
template <class From>
void pack_rows(const Target& target, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  constexpr int64_t kElements = From::kElements, kBytes = From::kBytes;
  const int64_t width = target.panel->lanes, ahead = kRowsAhead * source.k_stride;
  for (int64_t start = 0; start < words; start += kWordsOfRows) {
    const int64_t end = min(words, start + kWordsOfRows);
    for (int64_t first = 0; first < lanes; first += width) {
      for (int64_t q = start; q < end; ++q) {
        const char* const row = source.data + q * kElements * source.k_stride + first * kBytes;
        uint32_t* const at = to + first * words + q * width;
        const int64_t whole = (q + 1) * kElements <= k ? min(width, lanes - first) / 8 * 8 : 0;
#pragma GCC unroll 8
        for (int i = 0; i < kElements; ++i) {
          prefetch(row + i * source.k_stride + ahead);
          if (width * kBytes > 64) prefetch(row + i * source.k_stride + ahead + 64);
        }
        pack_whole_row<From>(target.flipped, row, source.k_stride, whole, at);
        for (int64_t lane = whole; lane < width; lane += 8) {
          const int64_t some = min(8, lanes - first - lane);
          const Source block = {source.data + (first + lane) * kBytes, source.k_stride, source.lane_stride, source.dtype};
          target.put(at + lane, some > 0 ? word_at_the_edge<From>(block, some, k, q) : zeros(), width - lane < 8);
        }
      }
    }
  }
}

template <class From>
void pack_from(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  const Target target = {&panel, spread_bytes(panel.plus_128 ? 0x80 : 0)};
  const bool rows = source.lane_stride == From::kBytes && source.k_stride != From::kBytes && panel.order == Order::kWords;
  (rows ? pack_rows<From> : pack_lanes<From>)(target, source, lanes, k, words, to);
}

// The low words of the lanes, then their high words, for each element along k.
void pack_int64(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  if (source.k_stride == 8) {  // words that are contiguous along k
    return pack_from<Widened<kFloat32>>(panel, {source.data, 4, source.lane_stride, kInt32}, lanes, 2 * k, words, to);
  }
  for (int64_t first = 0; first < lanes; first += panel.lanes, to += words * panel.lanes) {
    std::memset(to, 0, 4 * words * panel.lanes);
    uint32_t* at = to;
    for (int64_t q = 0; q < k && 2 * q < words; ++q, at += 2 * panel.lanes) {
      const char* row = source.data + q * source.k_stride + first * source.lane_stride;
      for (int64_t lane = 0; lane < min(panel.lanes, lanes - first); ++lane) {
        std::memcpy(at + lane, row + lane * source.lane_stride, 4);
        std::memcpy(at + panel.lanes + lane, row + lane * source.lane_stride + 4, 4);
      }
    }
  }
}

// Elements of 8 bytes as they are. Rows that are contiguous along the lanes are rows of twice as many words.
void pack_float64(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  if (source.lane_stride == 8) {
    return pack_from<Widened<kFloat32>>({panel.word, 2 * panel.lanes, panel.order, false},
                                        {source.data, source.k_stride, 4, kFloat32}, 2 * lanes, k, words / 2, to);
  }
  constexpr int64_t kLine = 8;  // elements along k of a lane, before the next one
  for (int64_t first = 0; first < lanes; first += panel.lanes, to += words * panel.lanes) {
    const int64_t some = min(panel.lanes, lanes - first);
    if (some < panel.lanes) std::memset(to, 0, 4 * words * panel.lanes);
    const char* const from = source.data + first * source.lane_stride;
    for (int64_t start = 0; start < words / 2; start += kLine)
      for (int64_t lane = 0; lane < some; ++lane)
        for (int64_t q = start; q < min(start + kLine, words / 2); ++q)
          std::memcpy(to + 2 * (q * panel.lanes + lane), from + lane * source.lane_stride + q * source.k_stride, 8);
  }
}

// Packs int8 and float8 as wider floats.
template <template <int64_t> class From>
void pack_bytes(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  if (source.dtype == kInt8) return pack_from<From<kInt8>>(panel, source, lanes, k, words, to);
  if (source.dtype == kE4m3) return pack_from<From<kE4m3>>(panel, source, lanes, k, words, to);
  pack_from<From<kE5m2>>(panel, source, lanes, k, words, to);
}

}  // namespace

void gemmhub::pack(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  if (panel.word == Word::kInt8x4) return pack_from<Bytes>(panel, source, lanes, k, words, to);
#ifdef __x86_64__
  if (panel.word == Word::kInt16x2) return pack_from<WidenedBytes>(panel, source, lanes, k, words, to);
#endif
  if (size_of(source.dtype) == 1)
    return (panel.word == Word::kBfloat16x2 ? pack_bytes<Decoded> : pack_bytes<WidenedByte>)(panel, source, lanes, k, words, to);
  if (panel.word == Word::kFloat16x2 || panel.word == Word::kBfloat16x2)
    return pack_from<Halves>(panel, source, lanes, k, words, to);
  if (panel.word == Word::kInt64Half) return pack_int64(panel, source, lanes, k, words, to);
  if (panel.word == Word::kFloat64Half) return pack_float64(panel, source, lanes, k, words, to);
  if (source.dtype == kFloat16) return pack_from<Widened<kFloat16>>(panel, source, lanes, k, words, to);
  if (source.dtype == kBfloat16) return pack_from<Widened<kBfloat16>>(panel, source, lanes, k, words, to);
  pack_from<Widened<kFloat32>>(panel, source, lanes, k, words, to);  // int32, too: its bits are copied
}
