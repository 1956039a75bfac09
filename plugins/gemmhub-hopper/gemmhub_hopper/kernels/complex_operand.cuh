// Complex operands of a product of real matrices. With the elements of C interleaved along N (or M),
//
//     C as m x 2 n numbers  =  A as m x 2 k numbers  *  B expanded to 2 k x 2 n numbers
//
// where A's row holds the real and the imaginary part of each element in turn, and each element x + i y of B becomes
//
//     [  x  y ]
//     [ -y  x ]
//
// Where C is interleaved along M, A is expanded and B is not. An operand is read in place: strides are of complex elements,
// in floats.
#pragma once
#include "ptx.cuh"

enum { REAL = 0, INTERLEAVED = 1, EXPANDED = 2 };  // along K; along M (N) besides

// Element (row, k) of the matrix of real numbers.
DEVICE float real_element(const float* from, long long row, long long k, long long from_row, long long from_k, int kind) {
    if (kind == REAL) return from[row * from_row + k * from_k];
    const int imaginary_row = kind == EXPANDED ? row & 1 : 0, imaginary_k = k & 1;
    const float value = from[(kind == EXPANDED ? row / 2 : row) * from_row + k / 2 * from_k + (imaginary_row ^ imaginary_k)];
    return kind == EXPANDED && imaginary_k && !imaginary_row ? -value : value;
}
