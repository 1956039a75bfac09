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
  me.copies.add({__builtin_return_address(0), shared, global, bytes, zeros, false});
  checker_copy_starts(me.copies.newest());
  if (options.async == kAtOnce || (options.async == kAtRandom && (block.random() & 1)))
    arrive(me.copies.newest());
  else if (options.poison)
    std::memset(shared, 0xff, bytes);  // whoever reads before the wait gets NaN, not old data
}

void musaSimCommit(void) { block.current->copies.commit(); }

void musaSimWait(size_t prior) {
  block.current->copies.finish(prior, [](Copy& copy) {
    arrive(copy);
    checker_copy_completes(copy);
  });
}

}  // extern "C"
