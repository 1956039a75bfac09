#include "state.hpp"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "heap.hpp"
#include "musa_sim.h"
#include "options.hpp"
#include "streams.hpp"

namespace musa_sim {

std::recursive_mutex big_lock;

namespace {

thread_local int device = 0;
thread_local musaError_t last = musaSuccess;
musaError_t lost = musaSuccess;
std::string message;

// Failures to inject: how many calls from now, or 0 for every call.
std::map<std::string, int> injections;

void inject(const char* spec) {
  injections.clear();
  std::istringstream items(spec ? spec : "");
  for (std::string item; std::getline(items, item, ',');) {
    const size_t colon = item.find(':');
    if (!item.empty()) injections[item.substr(0, colon)] = colon == item.npos ? 0 : std::atoi(item.c_str() + colon + 1);
  }
}

[[maybe_unused]] const bool injected_by_environment = (inject(std::getenv("MUSA_SIM_FAIL")), true);

bool loses_device(int error) {
  return error == 700 || error == 702 || error == 710 || (error >= 714 && error <= 719);
}

}  // namespace

int current_device() { return device; }
void set_current_device(int chosen) { device = chosen; }

musaError_t fail(musaError_t error) {
  if (error) last = error;
  return error;
}

musaError_t last_error(bool clear) {
  if (lost) return lost;
  const musaError_t error = last;
  if (clear) last = musaSuccess;
  return error;
}

void say(const std::string& text) {
  message = text;
  if (!options.quiet) std::fprintf(stderr, "musa simulator: %s\n", text.c_str());
}

void lose_device(musaError_t error, const std::string& text) {
  if (!lost) lost = error;
  say(text);
}

musaError_t device_lost() { return lost; }

bool should_fail(const char* function) {
  const auto found = injections.find(function);
  if (found == injections.end()) return false;
  if (found->second == 0) return true;
  if (--found->second > 0) return false;
  injections.erase(found);
  return true;
}

Call::Call(musaError_t injected, const char* function)
    : error((big_lock.lock(), check(function, injected))), lock_(big_lock, std::adopt_lock) {}

musaError_t Call::check(const char* function, musaError_t injected) const {
  if (lost) return lost;
  return should_fail(function) ? injected : musaSuccess;
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

int musaSimShouldFail(const char* function) {
  std::lock_guard guard(big_lock);
  return function && should_fail(function);
}

void musaSimInject(const char* spec) {
  std::lock_guard guard(big_lock);
  inject(spec);
}

void musaSimSetSticky(int error) {
  std::lock_guard guard(big_lock);
  if (loses_device(error))
    lost = static_cast<musaError_t>(error);
  else
    last = static_cast<musaError_t>(error);
  if (error == 0) lost = musaSuccess;
}

void musaSimReset(void) {
  std::lock_guard guard(big_lock);
  run_everything();
  lost = last = musaSuccess;
  message.clear();
  injections.clear();
  limit_memory(0);
}

const char* musaSimMessage(void) {
  std::lock_guard guard(big_lock);
  return message.c_str();
}

}  // extern "C"
