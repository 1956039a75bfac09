// Packing: micro-panels of an operand, whatever its strides, into the words that a micro-kernel reads.
#pragma once

#include "unit.h"

namespace gemmhub {

// An operand seen along k and along its other dimension ("lanes": the rows of a, the columns of b). Strides in bytes.
struct Source {
  const char* data;
  int64_t k_stride, lane_stride;
  int64_t dtype;
};

struct Panel {
  Word word;
  int64_t lanes;  // of a micro-panel: a multiple of 4 words
  Order order;
  bool plus_128;
};

// Bytes of an element in its packed form: a word holds 4 of them, of which an int64 or a float64 takes two words.
constexpr int64_t element_bytes(Word word) {
  return word == Word::kInt8x4 ? 1 : word == Word::kInt64Half || word == Word::kFloat64Half ? 8
         : word == Word::kFloat32 || word == Word::kInt32 ? 4 : 2;
}

// Lanes [0, lanes) and `k` elements along k of `source` into `to`, `words` deep; what is beyond is 0 (128 with plus_128).
// More lanes than a micro-panel's make further micro-panels, which follow one another.
void pack(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to);

}  // namespace gemmhub
