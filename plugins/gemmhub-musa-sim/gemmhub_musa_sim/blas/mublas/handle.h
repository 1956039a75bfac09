// muBLAS handles: created for the current device, with a stream, a pointer mode and a math mode of their own.
#pragma once

#pragma GCC visibility push(default)
#include <mublas.h>
#pragma GCC visibility pop

#include "product.h"

namespace musa_double {

struct Handle {
  int device;
  musaStream_t stream = nullptr;
  mublasPointerMode_t pointer_mode = MUBLAS_POINTER_MODE_HOST;
  mublasMath_t math_mode;
};

// A copy of what the handle says, in `found`. A handle that was destroyed, or made up, is known by its address: its
// memory is never read. Also refuses a handle whose device is not the current one, and a stream that is gone.
mublasStatus_t look_up(const char* function, mublasHandle_t handle, Handle& found);

}  // namespace musa_double
