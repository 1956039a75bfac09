// From accumulators to d: alpha, beta * c, bias, activation, rounding, store. The same for all kernels.
#pragma once
#include "params.cuh"
#include "ptx.cuh"

constexpr int OUTPUT_BYTES = OUTPUT >= 2 ? 4 : 2;

template <int type>
DEVICE float load_element(const void* base, long long index) {
    if constexpr (type == 2) {
        return load_global(static_cast<const float*>(base) + index);
    } else {
        const u16 bits = load_global(static_cast<const u16*>(base) + index);
        return type == 0 ? from_bf16(bits) : from_f16(bits);
    }
}

DEVICE void store_element(void* base, long long index, float value) {
    if constexpr (OUTPUT == 2)
        store_global(static_cast<float*>(base) + index, value);
    else
        store_global(static_cast<u16*>(base) + index, OUTPUT == 0 ? to_bf16(value) : to_f16(value));
}

DEVICE u32 pack(float low, float high) { return OUTPUT == 0 ? pack_bf16(low, high) : pack_f16(low, high); }

#include "activation_functions.cuh"

// The matrix of the batch that a CTA, or a warp, writes to.
struct Result {
    const Params& p;
    int matrix;
    const void* c;
    void* d;
    bool wide;  // contiguous elements may be stored at once

    // `run`: the contiguous elements that a thread stores at a time.
    DEVICE Result(const Params& p, int run) : Result(p, run, blockIdx.z) {}

    DEVICE Result(const Params& p, int run, long long matrix) : p(p), matrix(static_cast<int>(matrix)) {
        c = ADDEND ? static_cast<const char*>(p.c) + matrix * p.c_batch * OUTPUT_BYTES : nullptr;
        d = static_cast<char*>(p.d) + matrix * p.d_batch * OUTPUT_BYTES;
        wide = (reinterpret_cast<u64>(d) | p.d_ld * OUTPUT_BYTES) % (run * OUTPUT_BYTES) == 0;
    }

    // The factor of a row of a or a column of b: of results.
    DEVICE float factor(const Scales& scales, int element) const {
        return scales.at == nullptr ? 1.0f : load_global(scales.find(element, 0, matrix));
    }

    // Elements (row, column + i) of the product, finished and stored; what is outside of d is left out. `run` is 1, 2
    // or 4, and `column` a multiple of it.
    template <int run>
    DEVICE void store(int row, int column, const float (&product)[run]) const {
        if (row >= p.m || column >= p.n) return;
        const long long at = row * p.d_ld + column;
        float v[run];
        const float of_row = SCALES == 1 ? factor(p.row_scales, row) : 1.0f;
#pragma unroll
        for (int i = 0; i < run; ++i) {
            v[i] = product[i];
            if (column + i >= p.n) continue;
            if constexpr (SCALES == 1) v[i] *= of_row * factor(p.column_scales, column + i);  // equal bits if swapped
            // alpha == 0: A @ B is not read into the result (BLAS semantics).
            if constexpr (SCALED) v[i] = p.alpha == 0.0f ? 0.0f : p.alpha * v[i];
            // One rounding in every variant.
            if constexpr (ADDEND) v[i] = fmaf(p.beta, load_element<OUTPUT>(c, row * p.c_ld + column + i), v[i]);
            if constexpr (BIAS != 0) v[i] += load_element<BIAS_TYPE>(p.bias, BIAS == 1 ? row : column + i);
            v[i] = activated<ACTIVATION>(v[i]);
        }
        if (run > 1 && wide && column + run <= p.n) {
            store_run(static_cast<char*>(d) + at * OUTPUT_BYTES, v);
        } else {
#pragma unroll
            for (int i = 0; i < run; ++i)
                if (column + i < p.n) store_element(d, at + i, v[i]);
        }
    }

   private:
    DEVICE static void store_run(void*, const float (&)[1]) {}

    DEVICE static void store_run(void* to, const float (&v)[2]) {
        if constexpr (OUTPUT == 2)
            store_global(static_cast<Word2*>(to), {__float_as_uint(v[0]), __float_as_uint(v[1])});
        else
            store_global(static_cast<u32*>(to), pack(v[0], v[1]));
    }

    DEVICE static void store_run(void* to, const float (&v)[4]) {
        if constexpr (OUTPUT == 2)
            store_global(static_cast<Float4*>(to), {v[0], v[1], v[2], v[3]});
        else
            store_global(static_cast<Word2*>(to), {pack(v[0], v[1]), pack(v[2], v[3])});
    }
};
