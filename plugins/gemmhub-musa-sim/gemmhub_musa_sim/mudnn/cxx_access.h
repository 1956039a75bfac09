// The C++ API's classes keep their state private; these look into them.
#pragma once

#pragma GCC visibility push(default)
#include MUSA_SIM_MUDNN_CXX_HEADER
#pragma GCC visibility pop

#include "matmul.h"

namespace musa {
namespace dnn {

using musa_double::MatMulCall;
using musa_double::Outcome;
using musa_double::TensorView;

struct HandleState {
  int device;
  musaStream_t stream = nullptr;
  bool allow_tf32 = true;  // the vendor's default
};

class HandleAccess {
 public:
  // Null for a handle that was destroyed or never made.
  static HandleState* state(const Handle& handle);
};

class TensorAccess {
 public:
  static TensorView view(const Tensor& tensor);
};

Status status(Outcome outcome);

}  // namespace dnn
}  // namespace musa
