// Quantization scales of 8-bit operands, as parameters of a kernel. gemmhub_nvidia/scales.py has the same structure.
#pragma once

// Of A's rows, or of B's columns. Element i of matrix z has the factor in group g of K, of 128 elements, that is
// (i >> shift) stride + g depth + z batch elements from `at`; strides are 0 where one serves all.
struct Scales {
    const float* at;  // null where there are none
    long long stride, depth, batch;
    int shift;  // 7 where 128 elements share one, else 0
    int unused;

    DEVICE const float* find(int element, int group, int matrix) const {
        return at + (element >> shift) * stride + group * depth + matrix * batch;
    }
};
