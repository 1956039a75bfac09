// Step 3: fragments as large as the hardware's (32x32x16 by a warp of 128 threads on mp_22, 16x16x16 by one of 32 on
// mp_31), a tile of the result for each block, and copies of the next operands under way while the present ones are
// multiplied.
//
// - A and B lie in shared memory as they do in global memory, by rows or by columns: fragments can be loaded from both,
//   so nothing is transposed here. All of a line's stages lie side by side and share its padding, which makes the pitch
//   an odd number of 16-byte units: fragments are then read without bank conflicts.
// - Fragments of the next 16 elements in depth are loaded while the present ones are multiplied.
// - One barrier for each step in depth, before its last fragments are multiplied: all of them are in registers then. So
//   the barrier orders both the next step's copies before its fragments are loaded, and this step's loads before the
//   copies that overwrite its stage.
// - What is not aligned, or not inside of a matrix, is moved in smaller units, with zeros outside: neighbours by
//   neighbouring threads all the same.
// - The blocks of kGroup columns of tiles follow each other, so that they find the same operands in the L2 cache.
// - The result passes through shared memory in rows of the block's whole width, and is written in 16-byte vectors.
#include "copies.h"
#include "gemm.h"

#include <type_traits>

#if GEMMHUB_WARP == 128
#define __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include <crt/mma.h>
#undef __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#else
#include <mma.h>
#endif

using namespace gemmhub;
namespace wmma = mtmusa::wmma;

constexpr int kEdge = kWarp == 128 ? 32 : 16;  // rows and columns of a fragment
constexpr int kDepth = 16;                     // its inner dimension

// A tile policy: the block's tile of the result and its depth, its warps, how many steps are in shared memory at once,
// and how many columns of tiles are one group. choose.py lists those that are worth trying.
template <int kM_, int kN_, int kK_, int kWarpsM_, int kWarpsN_, int kStages_, int kGroup_>
struct Tile {
  static constexpr int kM = kM_, kN = kN_, kK = kK_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kStages = kStages_, kGroup = kGroup_;
  static constexpr int kThreads = kWarpsM * kWarpsN * kWarp;
  static constexpr int kFragmentsM = kM / (kWarpsM * kEdge), kFragmentsN = kN / (kWarpsN * kEdge);
  static_assert(kM == kFragmentsM * kWarpsM * kEdge && kN == kFragmentsN * kWarpsN * kEdge && kK % kDepth == 0,
                "the block's tile must consist of whole fragments");
  static_assert(kK % (2 * kDepth) == 0, "fragments alternate between two sets of registers");
  static_assert(kStages >= 2 && kThreads <= 1024, "two stages at least, 1024 threads at most");
  // Blocks that a multiprocessor must have room for, which limits registers: two where each thread is left 128 of 65,536,
  // and 255 where its sums are 128. A limit that spills the sums or fragments costs more than a second block is worth.
  static constexpr int kBlocks = kThreads <= 256 && kM * kN <= 128 * 128 ? 2 : 1;
  // Sums on their way out: one row of fragments of every warp at a time.
  static constexpr int kOutRows = kWarpsM * kEdge, kOutPitch = kN + 4;
};

// One operand's tile: kExtent rows of A, or columns of B. kDeep: its elements are neighbours in memory along k, else
// along the other dimension. A line is what is dense in memory. kWhole: all tiles lie inside of the matrix, and all
// lines are aligned; nothing need be looked at then, which leaves more registers to the sums.
template <class T, class P, bool kDeep, int kExtent, bool kWhole>
struct Operand {
  static constexpr int kRun = kDeep ? P::kK : kExtent, kLines = kDeep ? kExtent : P::kK;
  static constexpr int kPitch = P::kStages * kRun + kVector;
  static constexpr int kBytes = kLines * kPitch * int(sizeof(T));
  static constexpr int kVectorsPerLine = kRun / kVector, kLinesAtOnce = P::kThreads / kVectorsPerLine;
  static constexpr int kTimes = kLines / kLinesAtOnce;  // vectors of each thread
  static_assert(kPitch / kVector % 2 == 1, "an odd number of 16-byte units");
  static_assert(kTimes * kLinesAtOnce == kLines, "all threads must have equally many vectors");

  const T* from;   // this thread's first vector of the next step
  long long step;  // elements from line to line
  int readable;    // rows or columns that there are to read, from the tile's first one on
  int granule;

  // `matrix` begins at the tile's first row or column.
  __device__ __forceinline__ Operand(const T* matrix, long long line_step, int readable_, int granule_)
      : from(matrix + line() * line_step + at()), step(line_step), readable(readable_), granule(granule_) {}

  // The thread's first vector, in the tile.
  static __device__ __forceinline__ int line() { return int(threadIdx.x) / kVectorsPerLine; }
  static __device__ __forceinline__ int at() { return int(threadIdx.x) % kVectorsPerLine * kVector; }

  // Starts the copies of the next step, of which the matrix has k_left elements in depth, into one stage of `tiles`.
  __device__ __forceinline__ void load(T* tiles, int stage, int k_left) {
    T* const target = tiles + stage * kRun;
    if (kWhole || (granule == kVector && readable >= kExtent && k_left >= P::kK)) {
      T* const to = target + line() * kPitch + at();
#pragma unroll
      for (int i = 0; i < kTimes; i++)
        __pipeline_memcpy_async(to + i * kLinesAtOnce * kPitch, from + i * kLinesAtOnce * step, 16);
    } else if (granule == kVector) {
      load_units<kVector>(target, k_left);
    } else if (granule == kVector / 2) {
      load_units<kVector / 2>(target, k_left);
    } else if (granule == kVector / 4) {
      load_units<kVector / 4>(target, k_left);
    } else {
      load_units<1>(target, k_left);
    }
    from += kDeep ? P::kK : P::kK * step;
  }

  // The same in units of so many elements, neighbours by neighbouring threads; what lies outside becomes 0.
  template <int kUnit>
  __device__ __forceinline__ void load_units(T* target, int k_left) const {
    constexpr int kUnitsPerLine = kRun / kUnit;
    const int lines = kDeep ? readable : k_left, run = kDeep ? k_left : readable;
    const T* const first = from - (line() * step + at());
#pragma unroll 1
    for (int unit = int(threadIdx.x); unit < kLines * kUnitsPerLine; unit += P::kThreads) {
      const int y = unit / kUnitsPerLine, x = unit % kUnitsPerLine * kUnit;
      const int inside = y < lines ? run - x : 0;
      T* const to = target + y * kPitch + x;
      const T* const source = first + y * step + x;
      if (kUnit > 1 && inside >= kUnit) {
        __pipeline_memcpy_async(to, source, kUnit * sizeof(T));
      } else {
#pragma unroll 1
        for (int e = 0; e < kUnit; e++) to[e] = e < inside ? source[e] : from_float<T>(0.0f);
      }
    }
  }
};

// The tile of a block: down a group of kGroup columns of tiles, row by row. The last group may be narrower.
__device__ __forceinline__ void place_tile(int block, int tiles_m, int tiles_n, int group, int& tile_m, int& tile_n) {
  const int first = block / (tiles_m * group) * group;
  const int width = tiles_n - first < group ? tiles_n - first : group;
  const int inside = block - first * tiles_m;
  tile_m = inside / width;
  tile_n = first + inside % width;
}

template <class T, class P, bool deep_a, bool deep_b>
constexpr int shared_bytes() {
  constexpr int operands = Operand<T, P, deep_a, P::kM, true>::kBytes + Operand<T, P, deep_b, P::kN, true>::kBytes;
  constexpr int sums = P::kOutRows * P::kOutPitch * int(sizeof(float));
  return operands > sums ? operands : sums;
}

template <class T, class O, class P, bool deep_a, bool deep_b, bool whole>
__global__ __launch_bounds__(P::kThreads, P::kBlocks) void pipelined_gemm(const Gemm p) {
  using A = Operand<T, P, deep_a, P::kM, whole>;
  using B = Operand<T, P, deep_b, P::kN, whole>;
  using Left = wmma::fragment<wmma::matrix_a, kEdge, kEdge, kDepth, T,
                              std::conditional_t<deep_a, wmma::row_major, wmma::col_major>>;
  using Right = wmma::fragment<wmma::matrix_b, kEdge, kEdge, kDepth, T,
                               std::conditional_t<deep_b, wmma::col_major, wmma::row_major>>;
  extern __shared__ __align__(128) unsigned char storage[];
  T* const a_tiles = reinterpret_cast<T*>(storage);
  T* const b_tiles = reinterpret_cast<T*>(storage + A::kBytes);

  const int tiles_m = (p.m + P::kM - 1) / P::kM, tiles_n = (p.n + P::kN - 1) / P::kN;
  int tile_m, tile_n;
  place_tile(int(blockIdx.x), tiles_m, tiles_n, P::kGroup, tile_m, tile_n);
  const int row = tile_m * P::kM, column = tile_n * P::kN;
  const int warp = int(threadIdx.x) / kWarp, warp_m = warp / P::kWarpsN, warp_n = warp % P::kWarpsN;

  const T* const matrix_a = static_cast<const T*>(p.a) + matrix_at(p, p.batch_a);
  const T* const matrix_b = static_cast<const T*>(p.b) + matrix_at(p, p.batch_b);
  A a(matrix_a + row * p.a_row, deep_a ? p.a_row : p.a_col, p.a_readable - row, p.a_granule);
  B b(matrix_b + column * p.b_col, deep_b ? p.b_col : p.b_row, p.b_readable - column, p.b_granule);

  wmma::fragment<wmma::accumulator, kEdge, kEdge, kDepth, float> sum[P::kFragmentsM][P::kFragmentsN];
#pragma unroll
  for (int i = 0; i < P::kFragmentsM; i++)
#pragma unroll
    for (int j = 0; j < P::kFragmentsN; j++) wmma::fill_fragment(sum[i][j], 0.0f);

  // Each stage's copies are under way before the first step is multiplied.
#pragma unroll
  for (int step = 0; step < P::kStages; step++) {
    if (p.k > step * P::kK) {
      a.load(a_tiles, step, p.k - step * P::kK);
      b.load(b_tiles, step, p.k - step * P::kK);
    }
    __pipeline_commit();
  }

  // A k block's fragments. All of a step's are in registers when its last block begins, so that its stage is free then.
  Left left[P::kFragmentsM];
  Right right[2][P::kFragmentsN];
  auto load_left = [&](int i, int stage, int k) {
    const int m = (warp_m * P::kFragmentsM + i) * kEdge;
    wmma::load_matrix_sync(left[i], a_tiles + stage * A::kRun + (deep_a ? m * A::kPitch + k : k * A::kPitch + m),
                           A::kPitch);
  };
  auto load_right = [&](int buffer, int stage, int k) {
#pragma unroll
    for (int j = 0; j < P::kFragmentsN; j++) {
      const int n = (warp_n * P::kFragmentsN + j) * kEdge;
      wmma::load_matrix_sync(right[buffer][j],
                             b_tiles + stage * B::kRun + (deep_b ? n * B::kPitch + k : k * B::kPitch + n), B::kPitch);
    }
  };
  if (p.k > 0) {
    __pipeline_wait_prior(P::kStages - 1);
    __syncthreads();
    load_right(0, 0, 0);
#pragma unroll
    for (int i = 0; i < P::kFragmentsM; i++) load_left(i, 0, 0);
  }

  int stage = 0;
  for (int k_left = p.k; k_left > 0; k_left -= P::kK) {
    const int next_stage = stage + 1 < P::kStages ? stage + 1 : 0;
#pragma unroll
    for (int k = 0; k < P::kK; k += kDepth) {
      constexpr int kAhead = P::kStages * P::kK;
      const bool last = k + kDepth == P::kK, more = !last || k_left > P::kK;
      const int buffer = k / kDepth % 2, next = last ? next_stage : stage, next_k = last ? 0 : k + kDepth;
      if (last && more) {
        __pipeline_wait_prior(P::kStages - 2);
        __syncthreads();
        if (k_left > kAhead) {
          a.load(a_tiles, stage, k_left - kAhead);
          b.load(b_tiles, stage, k_left - kAhead);
        }
        __pipeline_commit();
      }
      if (more) load_right(1 - buffer, next, next_k);
#pragma unroll
      for (int i = 0; i < P::kFragmentsM; i++) {
#pragma unroll
        for (int j = 0; j < P::kFragmentsN; j++) wmma::mma_sync(sum[i][j], left[i], right[buffer][j], sum[i][j]);
        if (more) load_left(i, next, next_k);
      }
    }
    stage = next_stage;
  }

  // The operands' memory now serves for the sums, which threads take up in rows to finish and write them.
  constexpr int kColumns = 16 / int(sizeof(O)), kVectorsPerRow = P::kN / kColumns;
  float* const sums = reinterpret_cast<float*>(storage);
  const long long c_at = matrix_at(p, p.batch_c), d_at = matrix_at(p, p.batch_d);
#pragma unroll
  for (int i = 0; i < P::kFragmentsM; i++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < P::kFragmentsN; j++)
      wmma::store_matrix_sync(sums + warp_m * kEdge * P::kOutPitch + (warp_n * P::kFragmentsN + j) * kEdge, sum[i][j],
                              P::kOutPitch, wmma::mem_row_major);
    __syncthreads();
    auto row_of = [&](int y) { return row + (y / kEdge * P::kFragmentsM + i) * kEdge + y % kEdge; };
    if (whole || p.vectors) {
#pragma unroll 1
      for (int v = int(threadIdx.x); v < P::kOutRows * kVectorsPerRow; v += P::kThreads) {
        const int y = v / kVectorsPerRow, x = v % kVectorsPerRow * kColumns;
        finish_vector<O>(p, c_at, d_at, sums + y * P::kOutPitch + x, row_of(y), column + x);
      }
    } else {
#pragma unroll 1
      for (int v = int(threadIdx.x); v < P::kOutRows * P::kN; v += P::kThreads)
        finish<O>(p, c_at, d_at, sums[v / P::kN * P::kOutPitch + v % P::kN], row_of(v / P::kN), column + v % P::kN);
    }
  }
}

using Policy = Tile<GEMMHUB_M, GEMMHUB_N, GEMMHUB_K, GEMMHUB_WARPS_M, GEMMHUB_WARPS_N, GEMMHUB_STAGES, GEMMHUB_GROUP>;

// The two kernels for A, and B, whose elements are neighbours along k, or not: one for products of whole, aligned
// tiles, and one for all.
template <bool deep_a, bool deep_b>
struct Kernels {
  using T = GEMMHUB_OPERAND;
  using O = GEMMHUB_RESULT;
  static constexpr int kBytes = shared_bytes<T, Policy, deep_a, deep_b>();

  static int configure() {
    const int status = configure(pipelined_gemm<T, O, Policy, deep_a, deep_b, true>);
    return status == musaSuccess ? configure(pipelined_gemm<T, O, Policy, deep_a, deep_b, false>) : status;
  }

  static int configure(void (*kernel)(Gemm)) {
#if GEMMHUB_BANKS
    // Only a wish: a device whose banks are of one width goes on with that.
    if (musaFuncSetSharedMemConfig(kernel, musaSharedMemBankSizeEightByte) != musaSuccess) musaGetLastError();
#endif
    if (kBytes <= 48 * 1024) return musaSuccess;
    const int status = musaFuncSetAttribute(kernel, musaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (status != musaSuccess) musaGetLastError();
    return status;
  }

  static bool whole(const Gemm& p) {
    return p.m % Policy::kM == 0 && p.n % Policy::kN == 0 && p.k % Policy::kK == 0 && p.a_granule == kVector &&
           p.b_granule == kVector && p.vectors;
  }

  static int launch(const Gemm& gemm, musaStream_t stream, int* left) {
    return launch_tiles<O>(gemm, Policy::kM, Policy::kN, left, [&](const Gemm& p, dim3 grid) {
      if (whole(p))
        pipelined_gemm<T, O, Policy, deep_a, deep_b, true><<<grid, Policy::kThreads, kBytes, stream>>>(p);
      else
        pipelined_gemm<T, O, Policy, deep_a, deep_b, false><<<grid, Policy::kThreads, kBytes, stream>>>(p);
    });
  }
};

// Calls use() with the Kernels for operands that are deep or not.
template <class Use>
int with_kernel(int deep_a, int deep_b, Use use) {
  if (deep_a) return deep_b ? use(Kernels<true, true>()) : use(Kernels<true, false>());
  return deep_b ? use(Kernels<false, true>()) : use(Kernels<false, false>());
}

// Bytes of shared memory of a block.
extern "C" int gemmhub_shared_bytes(int deep_a, int deep_b) {
  return with_kernel(deep_a, deep_b, [](auto kernels) { return decltype(kernels)::kBytes; });
}

// To be called once on each device before the first launch there. Returns a musaError_t.
extern "C" int gemmhub_configure(int deep_a, int deep_b) {
  return with_kernel(deep_a, deep_b, [](auto kernels) { return kernels.configure(); });
}

extern "C" int gemmhub_gemm(const Gemm* gemm, int deep_a, int deep_b, musaStream_t stream, int* left) {
  return with_kernel(deep_a, deep_b, [&](auto kernels) { return kernels.launch(*gemm, stream, left); });
}
