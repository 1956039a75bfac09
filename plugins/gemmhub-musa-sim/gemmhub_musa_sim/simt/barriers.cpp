#include "barriers.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "checker.hpp"
#include "device.hpp"
#include "issue.hpp"

namespace musa_sim {

namespace {

// Barrier 0 is reserved (mutlass/arch/barrier.hpp: ReservedAsyncBarrierCount, HardwareMaxNumAsyncTransactionBarriers).
constexpr unsigned kBarriers = 64;
constexpr unsigned kNotYet = ~0u;

struct Barrier {
  unsigned warps = 0;      // that a phase waits for; 0: not made
  unsigned phase = 2;      // the one that is not over; its lowest bit is what programs see
  unsigned arrived = 0;    // warps, in this phase
  int64_t missing = 0;     // bytes that were announced and have not come
  unsigned made_by = 0, made_before = 0;  // thread, and the block barriers that it had passed
  std::vector<unsigned> arrivals;         // which warps
  std::vector<unsigned> seen;             // by thread: the phase that it last waited for; kNotYet: none
  std::vector<Thread*> waiting;
  Moment moment, ended;  // what precedes the end of this phase, as far as it has come, and of the one before
};

Barrier barriers[kBarriers];
unsigned recorded = 0;  // the most that __musa_async_bar_record has named

[[noreturn]] void fail(const char* format, unsigned number, unsigned value = 0) {
  char text[200];
  std::snprintf(text, sizeof text, format, number, value);
  musaSimFault(musaErrorLaunchFailure, text);
}

unsigned warp_of(const Thread& thread) { return thread.linear / static_cast<unsigned>(description().warp); }

// The barrier, if the running thread may know that it was made.
Barrier& known(unsigned number, const void* pc) {
  require_barrier(number);
  Barrier& barrier = barriers[number];
  const Thread& me = *block.current;
  if (barrier.made_by != me.linear && barrier.made_before == me.barriers && !precedes(barrier.made_by, 1, me))
    checker_barrier_finding(pc, "no __syncthreads between __musa_async_init_arrival and the use of barrier %u", number);
  return barrier;
}

void end_phase_if_complete(Barrier& barrier) {
  if (barrier.arrived < barrier.warps || barrier.missing) return;
  barrier.phase++;
  barrier.ended = barrier.moment;
  barrier.arrived = 0;
  barrier.arrivals.clear();
  block.ready.insert(block.ready.end(), barrier.waiting.rbegin(), barrier.waiting.rend());
  barrier.waiting.clear();
}

}  // namespace

void barriers_block_starts() {
  recorded = 0;
  for (Barrier& barrier : barriers) barrier.warps = 0;
}

void barriers_block_ends() {
  for (unsigned i = 0; i < kBarriers; i++) {
    const Barrier& barrier = barriers[i];
    if (!barrier.warps || (!barrier.arrived && !barrier.missing)) continue;
    checker_barrier_finding(nullptr, "the block ended in the middle of a phase of barrier %u", i);
  }
}

std::string describe_barriers() {
  std::string all;
  for (unsigned i = 0; i < kBarriers; i++) {
    const Barrier& barrier = barriers[i];
    if (!barrier.warps || barrier.waiting.empty()) continue;
    char text[160];
    std::snprintf(text, sizeof text, "; barrier %u: phase %u, %u of %u warps have arrived, %lld bytes are missing", i,
                  barrier.phase & 1, barrier.arrived, barrier.warps, static_cast<long long>(barrier.missing));
    all += text;
  }
  return all;
}

void require_barrier(unsigned number) {
  if (number == 0 || number >= kBarriers) fail("barrier %u: there are barriers 1 to %u", number, kBarriers - 1);
  if (number > recorded) fail("barrier %u: __musa_async_bar_record has named %u barriers", number, recorded);
  if (!barriers[number].warps) fail("barrier %u is used before __musa_async_init_arrival", number);
}

void bytes_arrive(unsigned number, size_t bytes, const Moment& moment) {
  Barrier& barrier = barriers[number];
  barrier.moment.resize(std::max(barrier.moment.size(), moment.size()));
  for (size_t i = 0; i < moment.size(); i++) barrier.moment[i] = std::max(barrier.moment[i], moment[i]);
  barrier.missing -= static_cast<int64_t>(bytes);
  end_phase_if_complete(barrier);
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

void musaSimBarrierRecord(unsigned count) {
  if (count >= kBarriers) fail("__musa_async_bar_record: %u barriers; there are %u", count, kBarriers - 1);
  recorded = std::max(recorded, count);
}

void musaSimBarrierInit(unsigned number, unsigned warps, unsigned phase) {
  const void* pc = __builtin_return_address(0);
  issue({"__musa_async_init_arrival", pc, {number, warps, phase}}, [=](const std::vector<Thread*>&) -> uint64_t {
    if (number == 0 || number >= kBarriers) fail("barrier %u: there are barriers 1 to %u", number, kBarriers - 1);
    if (!warps || phase > 1) fail("barrier %u: needs warps to wait for, and phase 0 or 1", number);
    Barrier& barrier = barriers[number];
    if (barrier.warps && (barrier.arrived || barrier.missing || !barrier.waiting.empty()))
      fail("barrier %u is made anew in the middle of a phase", number);
    order_begins();
    barrier = Barrier{};
    barrier.warps = warps;
    barrier.phase += phase;
    barrier.made_by = block.current->linear;
    barrier.made_before = block.current->barriers;
    barrier.seen.assign(block.size, kNotYet);
    return 0;
  });
}

unsigned musaSimBarrierArrive(unsigned number) {
  const void* pc = __builtin_return_address(0);
  const auto perform = [=](const std::vector<Thread*>& lanes) -> uint64_t {
    Barrier& barrier = known(number, pc);
    const unsigned warp = warp_of(*block.current), phase = barrier.phase & 1;
    if (std::find(barrier.arrivals.begin(), barrier.arrivals.end(), warp) != barrier.arrivals.end())
      checker_barrier_finding(pc, "a warp arrives twice in one phase of barrier %u", number);
    if (barrier.arrived == barrier.warps)
      fail("barrier %u: a warp arrives after all %u that its phase waits for", number, barrier.warps);
    barrier.arrived++;
    barrier.arrivals.push_back(warp);
    for (const Thread* lane : lanes) release(*lane, barrier.moment);
    end_phase_if_complete(barrier);
    return phase;
  };
  return static_cast<unsigned>(issue({"__musa_async_arrive", pc, {number}}, perform));
}

void musaSimBarrierAnnounce(unsigned number, long bytes) {
  const void* pc = __builtin_return_address(0);
  issue({"__musa_async_add_trans", pc, {number, static_cast<uint64_t>(bytes)}},
        [=](const std::vector<Thread*>&) -> uint64_t {
          Barrier& barrier = known(number, pc);
          barrier.missing += bytes;
          if (bytes < 0) end_phase_if_complete(barrier);
          return 0;
        });
}

void musaSimBarrierWait(unsigned number, unsigned phase) {
  const void* pc = __builtin_return_address(0);
  if (phase > 1) fail("barrier %u: the phase to wait for is 0 or 1, not %u", number, phase);
  Barrier& barrier = known(number, pc);
  Thread& me = *block.current;
  const unsigned awaited = (barrier.phase & 1) == phase ? barrier.phase : barrier.phase - 1;
  unsigned& seen = barrier.seen[me.linear];
  if (seen != kNotYet && awaited == seen)
    checker_barrier_finding(pc, "a thread waits twice for one phase of barrier %u: its phase bit was not flipped", number);
  if (seen != kNotYet && awaited != seen && awaited != seen + 1)
    checker_barrier_finding(pc, "barrier %u has gone past the phase that a thread waits for", number);
  seen = awaited;
  if (awaited == barrier.phase) {
    barrier.waiting.push_back(&me);
    block.wait({"__musa_async_wait"});
  }
  acquire(me, barrier.ended);
}

}  // extern "C"
