// A kernel on the host: compiled with its macros, this folder before gemmhub_hopper/kernels on the path. With PREPASS_KIND
// it is the pre-pass, with F16_PREPASS that by float16 planes, with GEMV_NUM_VECTORS the one for vectors.
#include "machine.hpp"

#ifdef PREPASS_KIND
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

using namespace emulator;

struct Launch {
    const TensorMap *a, *b, *d;
    const void* p;
} launch;

void entry() {
#ifdef PREPASS_KIND
    prepass(*static_cast<const PrepassParams*>(launch.p));
#elif defined(F16_PREPASS)
    f16_prepass(*static_cast<const F16PrepassParams*>(launch.p));
#elif defined(GEMV_NUM_VECTORS)
    gemv(*static_cast<const GemvParams*>(launch.p));
#else
    gemm(*launch.a, *launch.b, *launch.d, *static_cast<const Params*>(launch.p));
#endif
    Fiber& f = me();
    if (!f.multiplies.empty()) fail("ended with wgmmas that nobody waited for");
    if (!f.unfenced.empty()) fail("ended with stores that TMA was not told of");
    for (const Copy& c : machine->copies)
        if (!c.blocks && c.fiber == machine->current) fail("ended before its stores had read shared memory");
    --here().alive, --machine->alive;
    machine->leave();
}

}  // namespace

// 0 when the launch ends as it should; else `message` says what happened. Blocks of the
// pre-pass, and clusters of that for vectors, know nothing of each other: they run one after the other.
extern "C" int emulate(const TensorMap* a, const TensorMap* b, const TensorMap* d, const void* p, u32 grid, u64 seed,
                       char* message, u32 length) {
#if defined(PREPASS_KIND) || defined(F16_PREPASS) || defined(GEMV_NUM_VECTORS)
    const u32 at_once = kClusterSize;
#else
    const u32 at_once = grid;
#endif
    std::string error;
    simt::Stacks stacks;
    for (u32 first = 0; first < grid && error.empty(); first += at_once) {
        Machine fresh;
        machine = &fresh;
        launch = {a, b, d, p};
        try {
            run(stacks, at_once, first, seed + first, kNumThreads, kClusterSize, SMEM_FULL_OFFSET, entry);
        } catch (const std::exception& raised) {
            fresh.error = raised.what();
        }
        error = fresh.error;
        machine = nullptr;
    }
    snprintf(message, length, "%s", error.c_str());
    return error.empty() ? 0 : 1;
}

