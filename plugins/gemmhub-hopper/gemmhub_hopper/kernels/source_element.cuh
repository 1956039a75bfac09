// Operands of products by planes that are no float32 matrices, read in place as if they were.
//
// 16-bit elements are float32 numbers with fewer bits. Complex ones make a product of real matrices: with the elements of C
// interleaved along N (or M),
//
//     C as m x 2 n numbers  =  A as m x 2 k numbers  *  B expanded to 2 k x 2 n numbers
//
// where A's row holds the real and the imaginary part of each element in turn, and each element x + i y of B becomes
//
//     [  x  y ]
//     [ -y  x ]
//
// Where C is interleaved along M, A is expanded and B is not. Strides are of elements; of complex ones in floats.
#pragma once
#include "ptx.cuh"

enum { REAL = 0, INTERLEAVED = 1, EXPANDED = 2, FROM_BF16 = 3, FROM_F16 = 4 };

// The offset of an element of the matrix of float32 numbers, in elements of the source (of complex ones in floats), and its sign.
struct SourceOffset {
    long long element;
    float sign;
};

// Of element (row, k).
DEVICE SourceOffset source_offset(long long row, long long k, long long from_row, long long from_k, int format) {
    if (format != INTERLEAVED && format != EXPANDED) return {row * from_row + k * from_k, 1.0f};
    const int imaginary_row = format == EXPANDED ? row & 1 : 0, imaginary_k = k & 1;
    const long long element = (format == EXPANDED ? row / 2 : row) * from_row + k / 2 * from_k;
    return {element + (imaginary_row ^ imaginary_k), format == EXPANDED && imaginary_k && !imaginary_row ? -1.0f : 1.0f};
}

// Element (row, k).
DEVICE float source_element(const void* from, long long row, long long k, long long from_row, long long from_k, int format) {
    const SourceOffset at = source_offset(row, k, from_row, from_k, format);
    if (format == FROM_BF16) return from_bf16(static_cast<const u16*>(from)[at.element]);
    if (format == FROM_F16) return from_f16(static_cast<const u16*>(from)[at.element]);
    return at.sign * static_cast<const float*>(from)[at.element];
}

// The first element of matrix `batch`, of a stack whose matrices are `stride` elements apart.
DEVICE const void* source_matrix(const void* from, long long batch, long long stride, int format) {
    return static_cast<const char*>(from) + batch * stride * (format == FROM_BF16 || format == FROM_F16 ? 2 : 4);
}
