// Launching kernels: what the API checks before the SIMT engine runs them.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include "device.hpp"
#include "launch.hpp"
#include "launching.hpp"
#include "musa_runtime_api.h"
#include "musa_sim_device.h"
#include "options.hpp"
#include "places.hpp"
#include "state.hpp"
#include "streams.hpp"

namespace musa_sim {

namespace {

std::map<const void*, MusaSimKernel> kernels;        // by the address that programs launch
std::map<const void*, int> dynamic_limits;           // musaFuncSetAttribute
std::map<const void*, musaSharedMemConfig> banks;    // musaFuncSetSharedMemConfig

std::string name_of(const MusaSimKernel& kernel) {
  const auto known = kernels.find(kernel.function);
  if (known != kernels.end() && known->second.name) return known->second.name;
  return kernel.name ? kernel.name : function_name(kernel.function);
}

bool is_function(const void* address) {
  Dl_info info;
  return address && dladdr(address, &info) != 0;
}

size_t dynamic_limit(const void* function) {
  const auto set = dynamic_limits.find(function);
  return std::max<size_t>(kSharedDefault, set == dynamic_limits.end() ? 0 : static_cast<size_t>(set->second));
}

musaError_t refuse(musaError_t error, const MusaSimKernel& kernel, const char* why) {
  say(name_of(kernel) + ": " + why);
  return fail(error);
}

musaError_t check(const MusaSimKernel& kernel, dim3 grid, dim3 block, size_t dynamic_shared) {
  const Description& card = description();
  char text[200];
  if (kernel.arch != card.arch) {
    std::snprintf(text, sizeof text, "compiled for mp_%d, the device is mp_%d", kernel.arch, card.arch);
    return refuse(musaErrorNoKernelImageForDevice, kernel, text);
  }
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kThreadsPerBlock || block.z > 64)
    return refuse(musaErrorInvalidConfiguration, kernel, "a block must have 1 to 1024 threads, at most 64 in z");
  if (!grid.x || !grid.y || !grid.z || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
    return refuse(musaErrorInvalidConfiguration, kernel, "the grid must have 1 to 2147483647, 65535, 65535 blocks");
  const size_t fixed = shared_segment(kernel.function).bytes;
  if (fixed > card.shared || fixed + dynamic_shared > card.shared || dynamic_shared > dynamic_limit(kernel.function)) {
    std::snprintf(text, sizeof text,
                  "%zu bytes of static and %zu of dynamic shared memory; the device has %zu, dynamic %zu unless "
                  "musaFuncSetAttribute asks for more",
                  fixed, dynamic_shared, card.shared, kSharedDefault);
    return refuse(musaErrorInvalidValue, kernel, text);
  }
  return musaSuccess;
}

musaError_t launch(const MusaSimKernel& kernel, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared,
                   musaStream_t stream) {
  if (const musaError_t error = check(kernel, grid, block, dynamic_shared)) return error;
  auto run = std::make_shared<Launch>();
  run->kernel = kernel;
  run->name = name_of(kernel);
  run->grid = grid;
  run->block = block;
  run->dynamic_shared = dynamic_shared;
  run->device = current_device();
  for (unsigned i = 0; i < kernel.count; i++) {
    const char* value = static_cast<const char*>(arguments[i]);
    run->values.emplace_back(value, value + kernel.sizes[i]);
  }
  return fail(enqueue(stream, [run] { run_launch(*run); }));
}

}  // namespace

int bank_bytes(const void* function) {
  const auto set = banks.find(function);
  return set != banks.end() && set->second == musaSharedMemBankSizeEightByte ? 8 : 4;
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

void musaSimRegister(const MusaSimKernel* kernel) {
  std::lock_guard guard(big_lock);
  kernels[kernel->function] = *kernel;
}

void musaSimUnregister(const MusaSimKernel* kernel) {
  std::lock_guard guard(big_lock);
  run_everything();  // its code is about to be unloaded
  kernels.erase(kernel->function);
  dynamic_limits.erase(kernel->function);
  banks.erase(kernel->function);
}

musaError_t musaSimLaunch(const MusaSimKernel* kernel, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared,
                          musaStream_t stream) {
  // A launch with <<<>>> and one by name fail alike where a failure was injected for launches.
  MUSA_SIM_CALL(musaErrorLaunchOutOfResources, "musaLaunchKernel");
  return launch(*kernel, grid, block, arguments, dynamic_shared, stream);
}

musaError_t musaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared,
                             musaStream_t stream) {
  MUSA_SIM_CALL(musaErrorLaunchOutOfResources);
  const auto found = kernels.find(function);
  if (found == kernels.end()) return fail(musaErrorInvalidDeviceFunction);
  if (!arguments && found->second.count) return fail(musaErrorInvalidValue);
  return launch(found->second, grid, block, arguments, dynamic_shared, stream);
}

musaError_t musaFuncSetAttribute(const void* function, musaFuncAttribute attribute, int value) {
  MUSA_SIM_CALL();
  if (!is_function(function)) return fail(musaErrorInvalidDeviceFunction);
  if (attribute == musaFuncAttributePreferredSharedMemoryCarveout) return musaSuccess;
  if (attribute != musaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > description().shared)
    return fail(musaErrorInvalidValue);
  dynamic_limits[function] = value;
  return musaSuccess;
}

musaError_t musaFuncSetSharedMemConfig(const void* function, musaSharedMemConfig config) {
  MUSA_SIM_CALL();
  if (!is_function(function)) return fail(musaErrorInvalidDeviceFunction);
  if (config < musaSharedMemBankSizeDefault || config > musaSharedMemBankSizeEightByte)
    return fail(musaErrorInvalidValue);
  banks[function] = config;
  return musaSuccess;
}

musaError_t musaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                         size_t dynamic_shared) {
  MUSA_SIM_CALL();
  if (!blocks || threads <= 0) return fail(musaErrorInvalidValue);
  if (!is_function(function)) return fail(musaErrorInvalidDeviceFunction);
  const Description& card = description();
  const size_t shared = shared_segment(function).bytes + dynamic_shared;
  // Registers are not simulated, so this is an upper bound.
  *blocks = threads > kThreadsPerBlock ? 0 : card.threads_per_multiprocessor / threads;
  if (shared) *blocks = std::min(*blocks, static_cast<int>(card.shared / shared));
  return musaSuccess;
}

}  // extern "C"
