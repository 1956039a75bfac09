// Asynchronous barriers of mp_31: 63 of a block, by number, with phases. A phase ends when as many warps have arrived as
// the barrier was made for, and as many bytes have come by copies as were announced.
#pragma once
#include <cstdint>
#include <string>

#include "order.hpp"

namespace musa_sim {

void barriers_block_starts();
// Reports phases that were left half done.
void barriers_block_ends();
// "; barrier 2: phase 1, 3 of 4 warps have arrived, 0 bytes are missing", for each that is in use.
std::string describe_barriers();

// Fails where there is no such barrier.
void require_barrier(unsigned number);
// Bytes of a copy have arrived; what the copy had waited for precedes what waits for the barrier.
void bytes_arrive(unsigned number, size_t bytes, const Moment& moment);

}  // namespace musa_sim
