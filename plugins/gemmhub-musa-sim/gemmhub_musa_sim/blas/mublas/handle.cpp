#include "handle.h"

#include <map>
#include <mutex>

namespace musa_double {
namespace {

std::mutex mutex;
std::map<mublasHandle_t, Handle> handles;

// Handles are addresses that are never given out twice, so that a use after destroy cannot meet a younger handle.
mublasHandle_t new_address() {
  static uintptr_t next = 0x6d75000010;
  next += 0x40;
  return reinterpret_cast<mublasHandle_t>(next);
}

// Changes the handle under the lock.
template <class Change>
mublasStatus_t change(const char* function, mublasHandle_t handle, Change&& apply) {
  if (injected_fault(function)) return MUBLAS_STATUS_INTERNAL_ERROR;
  std::lock_guard lock(mutex);
  const auto found = handles.find(handle);
  if (found == handles.end())
    return refuse(MUBLAS_STATUS_INVALID_HANDLE, function, "no such handle (%p)", static_cast<void*>(handle));
  return apply(found->second);
}

}  // namespace

mublasStatus_t look_up(const char* function, mublasHandle_t handle, Handle& found) {
  const auto status = change(function, handle, [&](Handle& own) {
    found = own;
    return MUBLAS_STATUS_SUCCESS;
  });
  if (status != MUBLAS_STATUS_SUCCESS) return status;
  if (found.device != current_device()) {
    return refuse(MUBLAS_STATUS_INVALID_HANDLE, function, "the handle is of device %d, the current device is %d",
                  found.device, current_device());
  }
  if (found.stream && !musaSimStreamAlive(found.stream)) {
    return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "the handle's stream was destroyed");
  }
  return MUBLAS_STATUS_SUCCESS;
}

}  // namespace musa_double

using namespace musa_double;

extern "C" {

mublasStatus_t mublasCreate(mublasHandle_t* handle) {
  if (injected_fault("mublasCreate")) return MUBLAS_STATUS_MEMORY_ERROR;
  if (!handle) return MUBLAS_STATUS_INVALID_POINTER;
  const int device = current_device();
  if (device < 0) return refuse(MUBLAS_STATUS_INTERNAL_ERROR, "mublasCreate", "no current device");
  std::lock_guard lock(mutex);
  *handle = new_address();
  handles[*handle] = Handle{device, nullptr, MUBLAS_POINTER_MODE_HOST, MUSA_SIM_DEFAULT_MATH};
  return MUBLAS_STATUS_SUCCESS;
}

mublasStatus_t mublasDestroy(mublasHandle_t handle) {
  if (injected_fault("mublasDestroy")) return MUBLAS_STATUS_INTERNAL_ERROR;
  std::lock_guard lock(mutex);
  return handles.erase(handle) ? MUBLAS_STATUS_SUCCESS
                               : refuse(MUBLAS_STATUS_INVALID_HANDLE, "mublasDestroy", "no such handle");
}

mublasStatus_t mublasSetStream(mublasHandle_t handle, musaStream_t stream) {
  if (stream && !musaSimStreamAlive(stream))
    return refuse(MUBLAS_STATUS_INVALID_VALUE, "mublasSetStream", "no such stream");
  return change("mublasSetStream", handle, [&](Handle& own) {
    own.stream = stream;
    return MUBLAS_STATUS_SUCCESS;
  });
}

mublasStatus_t mublasGetStream(mublasHandle_t handle, musaStream_t* stream) {
  if (!stream) return MUBLAS_STATUS_INVALID_POINTER;
  return change("mublasGetStream", handle, [&](Handle& own) {
    *stream = own.stream;
    return MUBLAS_STATUS_SUCCESS;
  });
}

mublasStatus_t mublasSetPointerMode(mublasHandle_t handle, mublasPointerMode_t mode) {
  if (mode != MUBLAS_POINTER_MODE_HOST && mode != MUBLAS_POINTER_MODE_DEVICE) return MUBLAS_STATUS_INVALID_VALUE;
  return change("mublasSetPointerMode", handle, [&](Handle& own) {
    own.pointer_mode = mode;
    return MUBLAS_STATUS_SUCCESS;
  });
}

mublasStatus_t mublasGetPointerMode(mublasHandle_t handle, mublasPointerMode_t* mode) {
  if (!mode) return MUBLAS_STATUS_INVALID_POINTER;
  return change("mublasGetPointerMode", handle, [&](Handle& own) {
    *mode = own.pointer_mode;
    return MUBLAS_STATUS_SUCCESS;
  });
}

mublasStatus_t mublasSetMathMode(mublasHandle_t handle, mublasMath_t mode) {
  constexpr mublasMath_t known[] = {MUSA_SIM_MATH_MODES};
  bool is_known = false;
  for (const mublasMath_t one : known) is_known |= one == mode;
  if (!is_known) return refuse(MUBLAS_STATUS_INVALID_VALUE, "mublasSetMathMode", "mode %d", static_cast<int>(mode));
  return change("mublasSetMathMode", handle, [&](Handle& own) {
    own.math_mode = mode;
    return MUBLAS_STATUS_SUCCESS;
  });
}

mublasStatus_t mublasGetMathMode(mublasHandle_t handle, mublasMath_t* mode) {
  if (!mode) return MUBLAS_STATUS_INVALID_POINTER;
  return change("mublasGetMathMode", handle, [&](Handle& own) {
    *mode = own.math_mode;
    return MUBLAS_STATUS_SUCCESS;
  });
}

mublasStatus_t mublasGetVersion(mublasHandle_t handle, int* version) {
  if (!version) return MUBLAS_STATUS_INVALID_POINTER;
  return change("mublasGetVersion", handle, [&](Handle&) {
    *version = MUSA_SIM_NUMBER;
    return MUBLAS_STATUS_SUCCESS;
  });
}

const char* MUSA_SIM_STATUS_TEXT(mublasStatus_t status) {
  switch (status) {
    case MUBLAS_STATUS_SUCCESS:
      return "MUBLAS_STATUS_SUCCESS";
    case MUBLAS_STATUS_INVALID_HANDLE:
      return "MUBLAS_STATUS_INVALID_HANDLE";
    case MUBLAS_STATUS_NOT_IMPLEMENTED:
      return "MUBLAS_STATUS_NOT_IMPLEMENTED";
    case MUBLAS_STATUS_INVALID_POINTER:
      return "MUBLAS_STATUS_INVALID_POINTER";
    case MUBLAS_STATUS_INVALID_SIZE:
      return "MUBLAS_STATUS_INVALID_SIZE";
    case MUBLAS_STATUS_MEMORY_ERROR:
      return "MUBLAS_STATUS_MEMORY_ERROR";
    case MUBLAS_STATUS_INTERNAL_ERROR:
      return "MUBLAS_STATUS_INTERNAL_ERROR";
    case MUBLAS_STATUS_INVALID_VALUE:
      return "MUBLAS_STATUS_INVALID_VALUE";
    default:
      return "<unknown status>";
  }
}

}  // extern "C"
