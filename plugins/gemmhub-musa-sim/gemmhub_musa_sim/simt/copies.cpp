// Asynchronous copies from global into shared memory. A copy may arrive at any time between its start and the wait for
// it, so the engine chooses: at once, at the wait, or at random.
#include <cstring>

#include "block.hpp"
#include "checker.hpp"
#include "options.hpp"

namespace musa_sim {

namespace {

enum Arrival { kAtOnce = 0, kWhenWaitedFor = 1, kAtRandom = 2 };

void arrive(Copy& copy) {
  if (copy.arrived) return;
  copy.arrived = true;
  block.acting_for = copy.pc;
  std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
  std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
  block.acting_for = nullptr;
}

}  // namespace

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

void musaSimCopy(void* shared, const void* global, size_t bytes, size_t zeros) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
    musaSimFault(musaErrorLaunchFailure, "__pipeline_memcpy_async: the size must be 4, 8 or 16 bytes");
  const size_t addresses = reinterpret_cast<size_t>(shared) | reinterpret_cast<size_t>(global);
  if (addresses % bytes)
    musaSimFault(musaErrorMisalignedAddress, "__pipeline_memcpy_async: an address is not a multiple of the size");
  Thread& me = *block.current;
  me.copies.push_back({__builtin_return_address(0), shared, global, bytes, zeros, me.batch, false});
  checker_copy_starts(me.copies.back());
  if (options.async == kAtOnce || (options.async == kAtRandom && (block.random() & 1)))
    arrive(me.copies.back());
  else if (options.poison)
    std::memset(shared, 0xff, bytes);  // whoever reads before the wait gets NaN, not old data
}

void musaSimCommit(void) { block.current->batch++; }

void musaSimWait(size_t prior) {
  Thread& me = *block.current;
  size_t complete = 0;
  for (; complete < me.copies.size() && me.copies[complete].batch + prior < me.batch; complete++) {
    arrive(me.copies[complete]);
    checker_copy_completes(me.copies[complete]);
  }
  me.copies.erase(me.copies.begin(), me.copies.begin() + static_cast<std::ptrdiff_t>(complete));
}

}  // extern "C"
