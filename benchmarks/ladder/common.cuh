// What all steps of the ladder share: the parameters, and the plugin's wrappers of instructions.
//
// Shared memory is reached by 32-bit address through load_shared, store_shared and so on, not by __shared__ arrays: the
// tests' emulator sees every access that way. dynamic_shared() is its first byte.
#pragma once
#include "ptx.cuh"

// c (m x n) = a (m x k) b (k x n); rows are dense and follow each other. m, n and k are multiples of the step's tile.
template <class Element>
struct Operands {
    const Element *a, *b;
    Element* c;
    int m, n, k;
};
