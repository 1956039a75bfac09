// One kernel with one set of macros: SOURCE is its file.
#include "machine.hpp"

#include SOURCE

extern const u32 emulated_params_size = sizeof(Params);

void emulated_kernel(const void* params) { gemm(*static_cast<const Params*>(params)); }
