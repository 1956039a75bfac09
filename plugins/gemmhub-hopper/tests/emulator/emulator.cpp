// A kernel on the host: compiled with its macros, this folder before gemmhub_hopper/kernels on the path. With KIND it
// is the pre-pass, with VECTORS the one for vectors.
#include "machine.hpp"

#ifdef KIND
#include "prepass.cu"
constexpr u32 THREADS = PREPASS_THREADS, CLUSTER = 1, FULL_AT = 0;
#elif defined(VECTORS)
#include "gemv_kernel.cu"
constexpr u32 THREADS = GEMV_THREADS, FULL_AT = 0;
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
#ifdef KIND
    prepass(*static_cast<const PrepassParams*>(launch.p));
#elif defined(VECTORS)
    gemv(*static_cast<const GemvParams*>(launch.p));
#else
    gemm(*launch.a, *launch.b, *launch.d, *static_cast<const Params*>(launch.p));
#endif
    Fiber& f = me();
    if (!f.multiplies.empty()) fail("ended with wgmmas that nobody waited for");
    if (!f.unfenced.empty()) fail("ended with stores that TMA was not told of");
    for (const Copy& c : machine->copies)
        if (!c.blocks && c.fiber == machine->current) fail("ended before its stores had read shared memory");
    --here().alive;
    f.waits = DONE;
    for (;;) swapcontext(&f.context, &machine->home);
}

}  // namespace

// 0 when the launch ends as it should; else `message` says what happened. Blocks of the
// pre-pass, and clusters of that for vectors, know nothing of each other: they run one after the other.
extern "C" int emulate(const TensorMap* a, const TensorMap* b, const TensorMap* d, const void* p, u32 grid, u64 seed,
                       char* message, u32 length) {
#if defined(KIND) || defined(VECTORS)
    const u32 at_once = CLUSTER;
#else
    const u32 at_once = grid;
#endif
    std::string error;
    for (u32 first = 0; first < grid && error.empty(); first += at_once) {
        Machine fresh;
        machine = &fresh;
        launch = {a, b, d, p};
        try {
            run(at_once, first, seed + first, THREADS, CLUSTER, FULL_AT, entry);
        } catch (const std::exception& raised) {
            fresh.error = raised.what();
        }
        error = fresh.error;
        machine = nullptr;
    }
    snprintf(message, length, "%s", error.c_str());
    return error.empty() ? 0 : 1;
}

