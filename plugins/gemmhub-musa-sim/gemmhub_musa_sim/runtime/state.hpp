// What every function of the runtime shares: one lock, the errors, the injected failures, the current device.
#pragma once
#include <mutex>
#include <string>

#include "driver_types.h"

namespace musa_sim {

// One lock for everything. Recursive, because queued work runs under it and may ask about memory.
extern std::recursive_mutex big_lock;

// The device that the calling thread has chosen.
int current_device();
void set_current_device(int device);

// Keeps `error` as the thread's last error, and returns it.
musaError_t fail(musaError_t error);
musaError_t last_error(bool clear);

// A fault: every later call returns `error`. `text` is shown, and kept for musaSimMessage.
void lose_device(musaError_t error, const std::string& text);
// The error of a lost device, or musaSuccess.
musaError_t device_lost();
// Keeps the text for musaSimMessage and shows it.
void say(const std::string& text);

bool should_fail(const char* function);

// Stands at the head of every function of the API: takes the lock, then tells whether the call may go on.
class Call {
 public:
  explicit Call(musaError_t injected = musaErrorUnknown, const char* function = __builtin_FUNCTION());
  const musaError_t error;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  musaError_t check(const char* function, musaError_t injected) const;
};

}  // namespace musa_sim

// Returns from the function when the device is lost or a failure was injected; holds the lock until it returns.
#define MUSA_SIM_CALL(...)                   \
  musa_sim::Call musa_sim_call{__VA_ARGS__}; \
  if (musa_sim_call.error) return musa_sim::fail(musa_sim_call.error)
