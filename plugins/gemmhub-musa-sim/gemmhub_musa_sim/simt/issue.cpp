#include "issue.hpp"

#include "device.hpp"
#include "options.hpp"

namespace musa_sim {

namespace {

struct Pending {
  Instruction instruction;
  unsigned warp;
  std::vector<Thread*> lanes;
  Perform perform;
  uint64_t result = 0;
};

std::vector<Pending*> pending;  // on the stacks of the first lanes, which wait

}  // namespace

void issues_block_starts() { pending.clear(); }

uint64_t issue(const Instruction& instruction, Perform perform) {
  Thread& me = *block.current;
  const unsigned warp = me.linear / static_cast<unsigned>(description().warp);
  Pending mine{instruction, warp, {}, std::move(perform)};
  Pending* joined = nullptr;
  for (Pending* other : pending)
    if (other->warp == warp && other->instruction.pc == instruction.pc &&
        other->instruction.operands == instruction.operands)
      joined = other;
  if (!joined) pending.push_back(joined = &mine);
  joined->lanes.push_back(&me);
  uint64_t result = 0;
  me.issued = &result;
  block.wait({instruction.name});
  me.issued = nullptr;
  return result;
}

bool issue_next() {
  if (pending.empty()) return false;
  const size_t index = options.seed ? block.random() % pending.size() : 0;
  Pending& next = *pending[index];
  pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(index));
  Thread* const waiting = block.current;
  Thread* first = next.lanes[0];
  for (Thread* lane : next.lanes)
    if (lane->linear < first->linear) first = lane;
  block.act_as(first);
  const uint64_t result = next.perform(next.lanes);
  block.act_as(waiting);
  for (Thread* lane : next.lanes) *lane->issued = result;
  block.ready.insert(block.ready.end(), next.lanes.rbegin(), next.lanes.rend());
  return true;
}

}  // namespace musa_sim
