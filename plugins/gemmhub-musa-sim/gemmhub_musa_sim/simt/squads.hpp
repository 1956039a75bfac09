// Multiplications by a squad: 128 threads, operands in shared memory by descriptors, accumulators in registers (SQMMA).
// They run on their own; a thread has its results after __musa_sqmma_wait.
#pragma once

namespace musa_sim {

void squads_block_starts();
// Whether the running thread has results to wait for.
bool squad_work_is_open();

}  // namespace musa_sim
