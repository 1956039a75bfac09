// Instructions of a warp: the lanes that stand at the same one issue it together, once. The engine finds out which do by
// letting every thread of the block run until it waits for something.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "block.hpp"

namespace musa_sim {

// What tells one instruction from another: where it is in the code, and its operands.
struct Instruction {
  const char* name;
  const void* pc;
  std::vector<uint64_t> operands;
};

// Performed by the engine in the name of the first lane; `lanes` are all that issue it.
using Perform = std::function<uint64_t(const std::vector<Thread*>& lanes)>;

// Waits until the instruction is issued. The result is the same for all its lanes.
uint64_t issue(const Instruction& instruction, Perform perform);

void issues_block_starts();
// Issues one instruction that lanes wait at; false if there is none.
bool issue_next();

}  // namespace musa_sim
