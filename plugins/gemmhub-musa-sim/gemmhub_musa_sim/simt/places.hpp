// Addresses in a kernel's code as places in its source.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace musa_sim {

// "gemm.mu:41", or the module and offset where the module has no line numbers or addr2line is not installed.
std::string place(uintptr_t pc);
// Many at once: one run of addr2line for each module. place() then knows them.
void resolve(const std::vector<uintptr_t>& pcs);

// The function at an address, without its parameters.
std::string function_name(const void* function);

}  // namespace musa_sim
