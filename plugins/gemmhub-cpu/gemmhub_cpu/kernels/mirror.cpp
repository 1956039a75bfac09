// The upper triangle of a symmetric result, copied from the lower one.
#include <cstring>

#include "gemm.h"
#include "pool.h"
#include "sizes.h"

namespace {

using namespace gemmhub;

constexpr int64_t kBlock = 64;  // rows and columns of a block

template <class T>
void copy_one(const Matrix& x, int64_t i, int64_t j) {
  char* const data = reinterpret_cast<char*>(x.data);
  std::memcpy(data + j * x.row_stride + i * x.column_stride, data + i * x.row_stride + j * x.column_stride, sizeof(T));
}

// Transposes 8 / sizeof(T) rows and columns of contiguous elements, in words of 64 bits.
void transpose(const uint16_t* from, int64_t from_stride, char* to, int64_t to_stride) {
  constexpr uint64_t kEven = 0x0000ffff0000ffff, kLow = 0xffffffff;
  uint64_t row[4], pairs[4], column[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&row[i], from + i * from_stride, 8);
  for (int i = 0; i < 4; i += 2) {
    pairs[i] = (row[i] & kEven) | (row[i + 1] & kEven) << 16;
    pairs[i + 1] = (row[i] >> 16 & kEven) | (row[i + 1] & ~kEven);
  }
  for (int i = 0; i < 2; ++i) {
    column[i] = (pairs[i] & kLow) | pairs[i + 2] << 32;
    column[i + 2] = pairs[i] >> 32 | (pairs[i + 2] & ~kLow);
  }
  for (int i = 0; i < 4; ++i) std::memcpy(to + i * to_stride, &column[i], 8);
}
void transpose(const uint32_t* from, int64_t from_stride, char* to, int64_t to_stride) {
  const uint64_t column[2] = {from[0] | static_cast<uint64_t>(from[from_stride]) << 32,
                              from[1] | static_cast<uint64_t>(from[from_stride + 1]) << 32};
  for (int i = 0; i < 2; ++i) std::memcpy(to + i * to_stride, &column[i], 8);
}
void transpose(const uint64_t* from, int64_t, char* to, int64_t) { std::memcpy(to, from, 8); }

// A block below the diagonal, of rows from `row` on. It goes through a copy whose rows are not at the same lines of a cache, so
// that whole lines of both triangles are read and written.
template <class T>
void copy_block(const Matrix& x, int64_t row, int64_t rows, int64_t column) {
  constexpr int64_t kEach = 8 / sizeof(T), kStride = kBlock + kEach;
  const int64_t whole = x.column_stride == sizeof(T) ? rows / kEach * kEach : 0;
  char* const data = reinterpret_cast<char*>(x.data);
  T block[kBlock * kStride];
  for (int64_t i = 0; i < whole; ++i)
    std::memcpy(block + i * kStride, data + (row + i) * x.row_stride + column * sizeof(T), kBlock * sizeof(T));
  for (int64_t j = 0; j < kBlock; j += kEach) {
    char* const to = data + (column + j) * x.row_stride + row * sizeof(T);
    for (int64_t i = 0; i < whole; i += kEach) transpose(block + i * kStride + j, kStride, to + i * sizeof(T), x.row_stride);
  }
  for (int64_t i = row + whole; i < row + rows; ++i)
    for (int64_t j = column; j < column + kBlock; ++j) copy_one<T>(x, i, j);
}

template <class T>
void row_of_blocks(void* context, int64_t task, int64_t) {
  const Call& call = *static_cast<const Call*>(context);
  const int64_t row = task * kBlock, rows = min(kBlock, call.n - row);
  for (int64_t column = 0; column < row; column += kBlock) copy_block<T>(call.out, row, rows, column);
  for (int64_t i = row; i < row + rows; ++i)
    for (int64_t j = row; j < i; ++j) copy_one<T>(call.out, i, j);
}

}  // namespace

void gemmhub::mirror(Call* call) {
  const int64_t size = size_of(call->out.dtype), blocks = round_up(call->n, kBlock) / kBlock;
  const Task task = size == 2 ? row_of_blocks<uint16_t> : size == 4 ? row_of_blocks<uint32_t> : row_of_blocks<uint64_t>;
  share(task, call, blocks, allowed(min(call->threads, blocks / 8)));
}
