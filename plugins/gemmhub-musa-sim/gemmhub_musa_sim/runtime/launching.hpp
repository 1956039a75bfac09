#pragma once

namespace musa_sim {

// Width of a shared-memory bank in bytes that the program chose for a kernel: 4 unless it asked for 8.
int bank_bytes(const void* function);

}  // namespace musa_sim
