// A kernel on the host: compiled with its macros, this folder before gemmhub_hopper/kernels on the path. With PREPASS_FORMAT
// it is the pre-pass, with F16_PREPASS that by float16 planes, with GEMV_NUM_VECTORS the one for vectors.
#include "machine.hpp"

#if defined(PREPASS_FORMAT) || defined(F16_PREPASS) || defined(GEMV_NUM_VECTORS)
constexpr bool kApart = true;
#else
constexpr bool kApart = false;
#endif

#ifdef PREPASS_FORMAT
#include "prepass.cu"
constexpr u32 kClusterSize = 1, SMEM_FULL_OFFSET = 0;
#elif defined(F16_PREPASS)
#include "f16_prepass.cu"
constexpr u32 kClusterSize = 1, SMEM_FULL_OFFSET = 0;
#elif defined(GEMV_NUM_VECTORS)
#include "gemv_kernel.cu"
constexpr u32 SMEM_FULL_OFFSET = 0;
#else
#include "gemm_kernel.cu"
#endif

namespace {

struct Arguments {
    const TensorMap *a, *b, *d;
    const void* p;
} given;

void entry() {
#ifdef PREPASS_FORMAT
    prepass(*static_cast<const PrepassParams*>(given.p));
#elif defined(F16_PREPASS)
    f16_prepass(*static_cast<const F16PrepassParams*>(given.p));
#elif defined(GEMV_NUM_VECTORS)
    gemv(*static_cast<const GemvParams*>(given.p));
#else
    gemm(*given.a, *given.b, *given.d, *static_cast<const Params*>(given.p));
#endif
    emulator::leave();
}

}  // namespace

extern "C" int emulate(const TensorMap* a, const TensorMap* b, const TensorMap* d, const void* p, u32 grid, u64 seed,
                       char* message, u32 length) {
    given = {a, b, d, p};
    return emulator::launch({kNumThreads, kClusterSize, SMEM_FULL_OFFSET, kApart, entry}, grid, seed, message, length);
}
