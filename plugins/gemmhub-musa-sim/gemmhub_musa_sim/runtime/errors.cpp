// Names and texts of the runtime's errors.
#include "musa_runtime_api.h"

namespace {

struct Named {
  musaError_t error;
  const char* name;
  const char* text;
};

#define NAMED(error, text) {error, #error, text}
constexpr Named kErrors[] = {
    NAMED(musaSuccess, "no error"),
    NAMED(musaErrorInvalidValue, "invalid argument"),
    NAMED(musaErrorMemoryAllocation, "out of memory"),
    NAMED(musaErrorInitializationError, "initialization error"),
    NAMED(musaErrorInvalidConfiguration, "invalid configuration argument"),
    NAMED(musaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    NAMED(musaErrorInvalidDeviceFunction, "invalid device function"),
    NAMED(musaErrorNoDevice, "no MUSA-capable device is detected"),
    NAMED(musaErrorInvalidDevice, "invalid device ordinal"),
    NAMED(musaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    NAMED(musaErrorInvalidResourceHandle, "invalid resource handle"),
    NAMED(musaErrorNotReady, "device not ready"),
    NAMED(musaErrorIllegalAddress, "an illegal memory access was encountered"),
    NAMED(musaErrorLaunchOutOfResources, "too many resources requested for launch"),
    NAMED(musaErrorLaunchTimeout, "the launch timed out and was terminated"),
    NAMED(musaErrorAssert, "device-side assert triggered"),
    NAMED(musaErrorMisalignedAddress, "misaligned address"),
    NAMED(musaErrorLaunchFailure, "unspecified launch failure"),
    NAMED(musaErrorNotSupported, "operation not supported"),
    NAMED(musaErrorUnknown, "unknown error"),
};
#undef NAMED

const Named* find(musaError_t error) {
  for (const Named& one : kErrors)
    if (one.error == error) return &one;
  return nullptr;
}

}  // namespace

extern "C" const char* musaGetErrorName(musaError_t error) {
  const Named* found = find(error);
  return found ? found->name : "unrecognized error code";
}

extern "C" const char* musaGetErrorString(musaError_t error) {
  const Named* found = find(error);
  return found ? found->text : "unrecognized error code";
}
