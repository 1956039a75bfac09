// Step 4, for mp_31: tiles come by tensor copies (TME), and squads of 128 threads multiply them from shared memory (SQMMA).
//
// No card has run this kernel: it was run on the simulator only. The compiler's functions and their parameters are those
// that MUTLASS v0.3.0 calls: mute/arch/copy_mp31_tme.hpp, mma_mp31_sqmma.hpp, mma_mp31_desc.hpp, mutlass/arch/barrier.hpp.
//
//   producer (one lane)   waits until a stage is empty, announces its bytes, and starts its copies
//   consumers (squads)    wait until a stage is full, multiply, wait for the multiplication, give the stage back
//
// The operands' lines lie in the order of memory, along K or along M and N; copies swizzle them as multiplications expect.
// What a copy finds outside of a matrix is 0, so that every size is right.
#include "gemm.h"

#include <musa.h>

using namespace gemmhub;

constexpr int kM = GEMMHUB_M, kN = GEMMHUB_N, kK = GEMMHUB_K, kStages = GEMMHUB_STAGES, kGroup = GEMMHUB_GROUP;
constexpr int kSquad = 128;                                         // threads, and rows and columns that they multiply
constexpr int kSquads = GEMMHUB_WARPS_M * GEMMHUB_WARPS_N * kWarp / kSquad;
constexpr int kThreads = kSquads * kSquad + kSquad;                 // the last squad has the producer
constexpr int kSums = kSquad * kSquad / kSquad;                     // of a thread
static_assert(kWarp == 32 && kM == kSquads * kSquad && kN == kSquad, "a squad for every 128 rows, and 128 columns");
static_assert(kK == 64, "lines of 64 elements along K");

constexpr int kBoxBytes = kSquad * kK * 2;                          // of an operand: 128 lines along K, or 64 across
constexpr int kStageBytes = (kSquads + 1) * kBoxBytes;
constexpr int kBytes = kStages * kStageBytes;

// Barriers: full[stage] is over when the producer has announced a stage and its bytes have come, empty[stage] when all
// consumer warps are done with it.
__device__ __forceinline__ unsigned full(int stage) { return 1u + unsigned(stage); }
__device__ __forceinline__ unsigned empty(int stage) { return 1u + kStages + unsigned(stage); }

typedef int Pair __attribute__((vector_size(8)));
typedef __attribute__((address_space(3))) void SharedMemory;

// How an operand lies in shared memory: a line's bytes, as descriptors count them, and the swizzle's unit (1: 16 bytes,
// 2: 32). Lines across K must have units of 32 bytes where elements have 16 bits.
template <bool deep>
struct Lines {
  static constexpr int kSwizzle = deep ? 1 : 2;
  static constexpr int kPitch = deep ? 5 : 6;  // 128 or 256 bytes

  // Starts the copy of the box at `extent` of M or N and `depth` of K.
  static __device__ __forceinline__ void load(const MUtensorDescriptor& tensor, char* to, int stage, int extent,
                                              int depth) {
    constexpr int kStride256 = 3, kLine256 = 1, kPrefetch = 128, kNormal = 2;
    const Pair at = deep ? Pair{depth, extent} : Pair{extent, depth};
    const Pair size = deep ? Pair{kK, kSquad} : Pair{kSquad, kK};
    SharedMemory* const there = reinterpret_cast<SharedMemory*>(size_t(unsigned(__cvta_generic_to_shared(to))));
    __musa_tme_ld_tile_2d(full(stage), there, reinterpret_cast<unsigned long long>(&tensor), size, at, kSwizzle,
                          kStride256, kLine256, kPrefetch, kNormal, kNormal, 0);
  }

  static __device__ __forceinline__ int descriptor(const char* box) {
    return int(unsigned(__cvta_generic_to_shared(box))) | kPitch << 18 | kSwizzle << 21;
  }
};

template <class T>
struct Numbers;
template <>
struct Numbers<half> {
  static constexpr int kOfMultiply = 2;
  static constexpr MUtensorDescriptorDataType kOfTensor = MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT16;
};
template <>
struct Numbers<__mt_bfloat16> {
  static constexpr int kOfMultiply = 3;
  static constexpr MUtensorDescriptorDataType kOfTensor = MU_TENSOR_DESCRIPTOR_DATA_TYPE_BFLOAT16;
};

// The tile of a block: down a group of kGroup columns of tiles, row by row. The last group may be narrower.
__device__ __forceinline__ void place(const Gemm& p, int& row, int& column) {
  const int tiles_m = (p.m + kM - 1) / kM, tiles_n = (p.n + kN - 1) / kN, block = int(blockIdx.x);
  const int first = block / (tiles_m * kGroup) * kGroup;
  const int width = tiles_n - first < kGroup ? tiles_n - first : kGroup;
  const int inside = block - first * tiles_m;
  row = inside / width * kM;
  column = (first + inside % width) * kN;
}

template <bool deep_a, bool deep_b>
__device__ __forceinline__ void produce(const MUtensorDescriptor& a, const MUtensorDescriptor& b, char* stages, int row,
                                        int column, int tiles) {
  for (int i = 0; i < tiles; i++) {
    const int stage = i % kStages;
    char* const boxes = stages + stage * kStageBytes;
    __musa_async_wait(empty(stage), (i / kStages & 1) ^ 1);
    __musa_async_add_trans(full(stage), kStageBytes);
    __musa_async_arrive(full(stage));
#pragma unroll
    for (int squad = 0; squad < kSquads; squad++)
      Lines<deep_a>::load(a, boxes + squad * kBoxBytes, stage, row + squad * kSquad, i * kK);
    Lines<deep_b>::load(b, boxes + kSquads * kBoxBytes, stage, column, i * kK);
  }
}

template <class T, bool deep_a, bool deep_b>
__device__ __forceinline__ void consume(int (&sums)[kSums], const char* stages, int squad, int tiles) {
  constexpr int kKeep = 0;  // ScaleOut::One: the sums are added to
#pragma unroll
  for (int i = 0; i < kSums; i++) sums[i] = 0;  // the bits of 0.0f
  for (int i = 0; i < tiles; i++) {
    const int stage = i % kStages;
    const char* const boxes = stages + stage * kStageBytes;
    const int a = Lines<deep_a>::descriptor(boxes + squad * kBoxBytes);
    const int b = Lines<deep_b>::descriptor(boxes + kSquads * kBoxBytes);
    __musa_async_wait(full(stage), i / kStages & 1);
    __musa_sqmma_m128n128_mma(sums, &a, &b, sums, deep_a ? 0 : 1, deep_b ? 1 : 0, 0, 0, kKeep, 0, kK,
                              Numbers<T>::kOfMultiply);
    __musa_sqmma_wait();
    __musa_async_arrive(empty(stage));
  }
}

template <class T, class O, bool deep_a, bool deep_b>
__global__ __launch_bounds__(kThreads, 1) void sqmma_gemm(
    const Gemm p, const __attribute__((grid_constant)) MUtensorDescriptor a,
    const __attribute__((grid_constant)) MUtensorDescriptor b) {
  extern __shared__ __align__(4096) char stages[];
  const int warp = int(threadIdx.x) / kWarp, squad = int(threadIdx.x) / kSquad, lane = int(threadIdx.x) % kSquad;
  const int tiles = (p.k + kK - 1) / kK;
  int row, column;
  place(p, row, column);

  __musa_async_bar_record(2 * kStages);
  if (warp == 0) {
    for (int stage = 0; stage < kStages; stage++) {
      __musa_async_init_arrival(full(stage), 1, 0);
      __musa_async_init_arrival(empty(stage), kSquads * kSquad / kWarp, 0);
    }
  }
  __syncthreads();
  if (squad == kSquads) {
    if (lane == 0) produce<deep_a, deep_b>(a, b, stages, row, column, tiles);
    return;
  }

  int sums[kSums];
  consume<T, deep_a, deep_b>(sums, stages, squad, tiles);
  // Which elements a thread has: mute/atom/mma_traits_mp31_sqmma.hpp, CLayout.
  const long long c_at = matrix_at(p, p.batch_c), d_at = matrix_at(p, p.batch_d);
  const int first_row = row + squad * kSquad + lane / 8 % 4 + lane / 32 * 4, first_column = column + lane % 8;
#pragma unroll
  for (int i = 0; i < kSums; i++) {
    float sum;
    memcpy(&sum, &sums[i], sizeof sum);
    finish<O>(p, c_at, d_at, sum, first_row + i / 16 * 16, first_column + i % 16 * 8);
  }
}

// The tensor of an operand whose lines of `length` elements, `lines` of them, are `pitch` elements apart; of a single line
// that says nothing.
template <class T>
bool encode(MUtensorDescriptor* made, const void* address, long long length, long long lines, long long pitch) {
  const muuint64_t sizes[] = {muuint64_t(length), muuint64_t(lines)};
  const muuint64_t strides[] = {muuint64_t(2 * (lines == 1 ? kVector : pitch))};
  return muTensorDescriptorEncode(made, Numbers<T>::kOfTensor, 2, const_cast<void*>(address), sizes, strides,
                                  MU_TENSOR_DESCRIPTOR_INTERLEAVE_NONE, 0) == MUSA_SUCCESS;
}

template <bool deep_a, bool deep_b>
struct Kernels {
  using T = GEMMHUB_OPERAND;
  using O = GEMMHUB_RESULT;

  static int configure() {
    const int status = musaFuncSetAttribute(sqmma_gemm<T, O, deep_a, deep_b>,
                                            musaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (status != musaSuccess) musaGetLastError();
    return status;
  }

  static int launch(const Gemm& gemm, musaStream_t stream, int* left) {
    MUtensorDescriptor a{}, b{};
    bool encoded = true;
    const int status = launch_tiles<O>(gemm, kM, kN, left, [&](const Gemm& p, dim3 grid) {
      if (p.k > 0) {
        encoded = (deep_a ? encode<T>(&a, p.a, p.k, p.m, p.a_row) : encode<T>(&a, p.a, p.m, p.k, p.a_col)) &&
                  (deep_b ? encode<T>(&b, p.b, p.k, p.n, p.b_col) : encode<T>(&b, p.b, p.n, p.k, p.b_row));
      }
      if (encoded) sqmma_gemm<T, O, deep_a, deep_b><<<grid, kThreads, kBytes, stream>>>(p, a, b);
    });
    return encoded ? status : int(musaErrorInvalidValue);
  }
};

// Calls use() with the Kernels for operands whose lines are along K, or not.
template <class Use>
int with_kernel(int deep_a, int deep_b, Use use) {
  if (deep_a) return deep_b ? use(Kernels<true, true>()) : use(Kernels<true, false>());
  return deep_b ? use(Kernels<false, true>()) : use(Kernels<false, false>());
}

// Bytes of shared memory of a block.
extern "C" int gemmhub_shared_bytes(int, int) { return kBytes; }

// To be called once on each device before the first launch there. Returns a musaError_t.
extern "C" int gemmhub_configure(int deep_a, int deep_b) {
  return with_kernel(deep_a, deep_b, [](auto kernels) { return kernels.configure(); });
}

extern "C" int gemmhub_gemm(const Gemm* gemm, int deep_a, int deep_b, musaStream_t stream, int* left) {
  return with_kernel(deep_a, deep_b, [&](auto kernels) { return kernels.launch(*gemm, stream, left); });
}
