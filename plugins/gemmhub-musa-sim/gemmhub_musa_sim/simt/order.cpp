#include "order.hpp"

#include <algorithm>

namespace musa_sim {

namespace {

bool active = false;
std::vector<uint32_t> clocks;  // a row for each thread: what it knows of the others' times

uint32_t* row(unsigned thread) { return clocks.data() + size_t{thread} * block.size; }

}  // namespace

void order_block_starts() { active = false; }

void order_begins() {
  if (active) return;
  active = true;
  clocks.assign(size_t{block.size} * block.size, 0);
  for (unsigned i = 0; i < block.size; i++) row(i)[i] = 1;
}

uint32_t time_of(const Thread& thread) { return active ? row(thread.linear)[thread.linear] : 1; }

bool precedes(unsigned thread, uint32_t time, const Thread& me) {
  return active && row(me.linear)[thread] >= time;
}

void release(const Thread& thread, Moment& moment) {
  if (!active) return;
  moment.resize(block.size);
  uint32_t* mine = row(thread.linear);
  for (unsigned i = 0; i < block.size; i++) moment[i] = std::max(moment[i], mine[i]);
  mine[thread.linear]++;
}

void acquire(const Thread& thread, const Moment& moment) {
  if (!active) return;
  uint32_t* mine = row(thread.linear);
  for (size_t i = 0; i < moment.size(); i++) mine[i] = std::max(mine[i], moment[i]);
}

void order_warp(unsigned warp) {
  if (!active) return;
  const unsigned first = block.current->linear / warp * warp, end = std::min(first + warp, block.size);
  Moment moment;
  for (unsigned i = first; i < end; i++) release(block.threads[i], moment);
  for (unsigned i = first; i < end; i++) acquire(block.threads[i], moment);
}

}  // namespace musa_sim
