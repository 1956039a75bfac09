// Copies of boxes of tensors between global and shared memory (TME), started by one instruction of a warp. Those into
// shared memory end at a barrier; those from it are waited for by the warp that started them.
#pragma once

namespace musa_sim {

void tensor_copies_block_starts();
// Fails where a copy into shared memory is on its way; finishes the others.
void tensor_copies_block_ends();
// Lets one copy that is on its way into shared memory arrive; false if there is none.
bool copy_arrives();

}  // namespace musa_sim
