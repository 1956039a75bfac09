// Right and wrong uses of what the emulator checks: `which` says.
#include "ptx.cuh"

struct Params {
    u32* out;
    const u32* in;
    int which;
};

DEVICE void neighbour(const Params& p, bool sync) {
    const u32 base = dynamic_shared(), t = threadIdx.x;
    store_shared(base + 4 * t, t);
    if (sync) block_sync();
    store_global(p.out + blockIdx.x * 64 + t, load_shared<u32>(base + 4 * ((t + 33) % 64)));
}

GLOBAL_KERNEL void gemm(const __grid_constant__ Params p) {
    const u32 base = dynamic_shared(), t = threadIdx.x;
    const int which = p.which;
    if (which == 0) neighbour(p, true);
    if (which == 1) neighbour(p, false);
    if (which == 2) load_shared<u32>(base + 4 * t);
    if (which == 3) store_shared(base + 1024, t);
    if (which == 4) store_shared(base + 2, t);
    if (which == 5 && t != 5) block_sync();
    if (which == 6) {
        if (t % 2)
            warp_sync();
        else
            block_sync();
    }
    if (which == 7) store_shared(base, t);
    if (which == 8) {  // written again before all have read
        if (t == 0) store_shared(base, t);
        block_sync();
        load_shared<u32>(base);
        if (t == 40) store_shared(base, t);
    }
    if (which == 9) store_global(p.out + 64 * gridDim.x * 5 + 1, t);
    if (which == 10) store_global(const_cast<u32*>(p.in), t);
    if (which >= 11 && which <= 14) {
        copy_async<4>(base + 4 * t, p.in + t, 4);
        copy_commit();
        copy_async<4>(base + 256 + 4 * t, p.in + t, 0);
        copy_commit();
        if (which == 12) copy_wait<2>();
        if (which > 12) copy_wait<0>();
        if (which != 13) block_sync();
        u32 sum = load_shared<u32>(base + 4 * ((t + 1) % 64));
        if (which == 14) sum += load_shared<u32>(base + 256 + 4 * t);
        store_global(p.out + blockIdx.x * 64 + t, sum);
    }
    if (which == 15) {  // within a warp its own barrier does
        store_shared(base + 4 * t, t);
        warp_sync();
        store_global(p.out + blockIdx.x * 64 + t, load_shared<u32>(base + 4 * (t ^ 1)));
    }
    if (which == 16) {
        store_shared(base + 4 * t, t);
        warp_sync();
        load_shared<u32>(base + 4 * (t ^ 32));
    }
    if (which >= 18) {  // what the other blocks store, by whichever block counts up last
        Float4* parts = reinterpret_cast<Float4*>(p.out) + 16 * gridDim.x;
        store_partial(parts + 64 * blockIdx.x + t, {1.0f, 2.0f, 3.0f, 4.0f});
        if (which != 19) device_fence();
        if (which != 20) block_sync();
        if (t == 0) store_shared(base, count_up(p.out + 64 * gridDim.x * 5));
        block_sync();
        if (load_shared<u32>(base) != gridDim.x - 1) return;
        float sum = 0.0f;
        for (u32 block = 0; block < gridDim.x; ++block) sum += load_partial(parts + 64 * block + t).w;
        store_global(p.out + t, static_cast<u32>(sum));
    }
    if (which == 17) {  // 2-way conflicts: words 8 bytes apart
        store_shared(base + 8 * t, t);
        store_shared(base + 4 + 8 * t, t);
    }
}
