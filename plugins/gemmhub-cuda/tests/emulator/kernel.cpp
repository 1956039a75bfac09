// One kernel with one set of macros: SOURCE is its file, ENTRY the name of its function where that is not gemm.
#include "machine.hpp"

#include SOURCE

#ifndef ENTRY
#define ENTRY gemm
#endif

extern const u32 emulated_params_size = sizeof(Params);

void emulated_kernel(const void* params) { ENTRY(*static_cast<const Params*>(params)); }
