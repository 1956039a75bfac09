#include "device.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "heap.hpp"
#include "musa_runtime_api.h"
#include "musa_sim.h"
#include "options.hpp"
#include "state.hpp"
#include "streams.hpp"

namespace musa_sim {

namespace {
constexpr size_t kGiB = size_t{1} << 30;
constexpr Description kDescriptions[] = {
    {21, "Simulated MTT S3000", 32, 128, 6144, 28 << 10, 16 << 20, 32 * kGiB},
    {22, "Simulated MTT S4000", 56, 128, 6144, 72 << 10, 24 << 20, 48 * kGiB},
    {31, "Simulated MTT S5000", 60, 32, 3072, 192 << 10, 60 << 20, 80 * kGiB},
};
}  // namespace

const Description& description() {
  for (const Description& one : kDescriptions)
    if (one.arch == options.arch) return one;
  return kDescriptions[1];
}

bool valid_device(int device) { return device >= 0 && device < options.devices; }

// Set when the library is linked for an SDK generation (version.cpp).
extern const int sdk_number;

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

musaError_t musaGetDeviceCount(int* count) {
  MUSA_SIM_CALL();
  if (!count) return fail(musaErrorInvalidValue);
  *count = options.devices;
  return options.devices > 0 ? musaSuccess : fail(musaErrorNoDevice);
}

musaError_t musaGetDevice(int* device) {
  MUSA_SIM_CALL();
  if (!device) return fail(musaErrorInvalidValue);
  *device = current_device();
  return musaSuccess;
}

musaError_t musaSetDevice(int device) {
  MUSA_SIM_CALL();
  if (options.devices <= 0) return fail(musaErrorNoDevice);
  if (!valid_device(device)) return fail(musaErrorInvalidDevice);
  set_current_device(device);
  return musaSuccess;
}

musaError_t musaDeviceSynchronize(void) {
  MUSA_SIM_CALL();
  run_device(current_device());
  return fail(device_lost());
}

musaError_t musaDeviceGetAttribute(int* value, musaDeviceAttr attribute, int device) {
  MUSA_SIM_CALL();
  if (!value) return fail(musaErrorInvalidValue);
  if (!valid_device(device)) return fail(musaErrorInvalidDevice);
  const Description& card = description();
  switch (attribute) {
    case musaDevAttrMaxThreadsPerBlock:
    case musaDevAttrMaxBlockDimX:
    case musaDevAttrMaxBlockDimY: *value = kThreadsPerBlock; break;
    case musaDevAttrMaxBlockDimZ: *value = 64; break;
    case musaDevAttrMaxGridDimX: *value = 2147483647; break;
    case musaDevAttrMaxGridDimY:
    case musaDevAttrMaxGridDimZ: *value = 65535; break;
    case musaDevAttrMaxSharedMemoryPerBlock:
    case musaDevAttrMaxSharedMemoryPerBlockOptin:
    case musaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(card.shared); break;
    case musaDevAttrTotalConstantMemory: *value = 64 << 10; break;
    case musaDevAttrWarpSize: *value = card.warp; break;
    case musaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case musaDevAttrClockRate: *value = 1750000; break;
    case musaDevAttrMultiProcessorCount: *value = card.multiprocessors; break;
    case musaDevAttrMemoryClockRate: *value = 8000000; break;
    case musaDevAttrGlobalMemoryBusWidth: *value = 384; break;
    case musaDevAttrL2CacheSize: *value = static_cast<int>(card.l2); break;
    case musaDevAttrMaxThreadsPerMultiProcessor: *value = card.threads_per_multiprocessor; break;
    case musaDevAttrComputeCapabilityMajor: *value = card.arch / 10; break;
    case musaDevAttrComputeCapabilityMinor: *value = card.arch % 10; break;
    default: return fail(musaErrorInvalidValue);
  }
  return musaSuccess;
}

musaError_t musaGetDeviceProperties(musaDeviceProp* properties, int device) {
  MUSA_SIM_CALL();
  if (!properties) return fail(musaErrorInvalidValue);
  if (!valid_device(device)) return fail(musaErrorInvalidDevice);
  const Description& card = description();
  musaDeviceProp filled{};
  std::snprintf(filled.name, sizeof filled.name, "%s", card.name);
  filled.major = card.arch / 10;
  filled.minor = card.arch % 10;
  filled.multiProcessorCount = card.multiprocessors;
  filled.warpSize = card.warp;
  filled.totalGlobalMem = memory_total();
  filled.sharedMemPerBlock = card.shared;
  filled.sharedMemPerMultiprocessor = card.shared;
  filled.maxThreadsPerBlock = kThreadsPerBlock;
  filled.maxThreadsPerMultiProcessor = card.threads_per_multiprocessor;
  filled.regsPerBlock = 65536;
  filled.l2CacheSize = static_cast<int>(card.l2);
  filled.clockRate = 1750000;
  *properties = filled;
  return musaSuccess;
}

musaError_t musaDeviceGetPCIBusId(char* text, int length, int device) {
  MUSA_SIM_CALL();
  if (!text || length < 13) return fail(musaErrorInvalidValue);
  if (!valid_device(device)) return fail(musaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return musaSuccess;
}

musaError_t musaMemGetInfo(size_t* free_bytes, size_t* total) {
  MUSA_SIM_CALL();
  if (!free_bytes || !total) return fail(musaErrorInvalidValue);
  *total = memory_total();
  *free_bytes = *total - std::min(*total, memory_used(current_device()));
  return musaSuccess;
}

musaError_t musaRuntimeGetVersion(int* version) {
  MUSA_SIM_CALL();
  if (!version) return fail(musaErrorInvalidValue);
  *version = sdk_number;
  return musaSuccess;
}

musaError_t musaDriverGetVersion(int* version) {
  MUSA_SIM_CALL();
  if (!version) return fail(musaErrorInvalidValue);
  *version = sdk_number;
  return musaSuccess;
}

}  // extern "C"
