// The emulated machine, as ptx.cuh and wgmma.cuh see it. Every kernel compiles this: no containers, no strings, and no
// bodies, which are compiled once for all kernels.
#pragma once
#include "simt/device.hpp"

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

namespace emulator {

// A kernel, and how its threads are laid out. `full_at`: where barriers begin in dynamic shared memory, for reports of
// deadlocks. `apart`: clusters know nothing of each other, and run one after the other.
struct Kernel {
    u32 threads, cluster, full_at;
    bool apart;
    void (*entry)();
};

// 0 when the launch ends as it should; else `message` says what happened.
int launch(const Kernel& kernel, u32 grid, u64 seed, char* message, u32 length);
// What a thread ends with.
void leave();

// `d`: float32 sums, of int8 int32 ones.
void multiply(void* d, u32 n, u64 a, u64 b, bool a_mn, bool b_mn, int input, int accumulate);
void multiply(void* d, u32 n, const u32 (&a)[4], u64 b, bool b_mn, int input, int accumulate);
// Returns once all groups but the `open` newest are done.
void wait_multiplies(u32 open);
// All loads of the thread but those of its newest `open` groups; of a machine in a hurry all.
void finish_loads(u32 open);
// Zeros unless `there`.
void load_bytes(const void* from, bool there, void* to, u32 bytes);

}  // namespace emulator
