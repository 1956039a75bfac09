// musa::dnn::Handle and Tensor.
#include <mutex>
#include <set>

#include "cxx_access.h"

namespace musa {
namespace dnn {
namespace {

std::mutex mutex;
std::set<const void*> live;

HandleState* make(int device) {
  if (musa_double::injected_fault("Handle.Handle")) return nullptr;
  auto* state = new HandleState{device};
  std::lock_guard lock(mutex);
  live.insert(state);
  return state;
}

}  // namespace

HandleState* HandleAccess::state(const Handle& handle) {
  std::lock_guard lock(mutex);
  return live.count(handle.impl_) ? static_cast<HandleState*>(handle.impl_) : nullptr;
}

Status status(Outcome outcome) {
  switch (outcome) {
    case Outcome::success:
      return Status::SUCCESS;
    case Outcome::invalid_parameter:
      return Status::INVALID_PARAMETER;
    case Outcome::not_initialized:
      return Status::NOT_INITIALIZED;
    case Outcome::alloc_failed:
      return Status::ALLOC_FAILED;
    case Outcome::not_supported:
      return Status::NOT_SUPPORTED;
    case Outcome::internal_error:
      return Status::INTERNAL_ERROR;
    case Outcome::arch_mismatch:
      return Status::ARCH_MISMATCH;
    case Outcome::execution_failed:
      return Status::EXECUTION_FAILED;
  }
  __builtin_unreachable();
}

Handle::Handle() : impl_(make(musa_double::current_device())) {}
Handle::Handle(int device) : impl_(make(device)) {}

Handle::~Handle() {
  std::lock_guard lock(mutex);
  if (live.erase(impl_)) delete static_cast<HandleState*>(impl_);
  impl_ = nullptr;
}

Status Handle::SetStream(musaStream_t stream) {
  if (musa_double::injected_fault("Handle.SetStream")) return Status::INTERNAL_ERROR;
  HandleState* state = HandleAccess::state(*this);
  if (!state) return Status::NOT_INITIALIZED;
  if (stream && !musaSimStreamAlive(stream))
    return musa_double::refuse(Status::INVALID_PARAMETER, "Handle.SetStream", "no such stream");
  state->stream = stream;
  return Status::SUCCESS;
}

Status Handle::GetStream(musaStream_t* stream) {
  HandleState* state = HandleAccess::state(*this);
  if (!state) return Status::NOT_INITIALIZED;
  if (!stream) return Status::INVALID_PARAMETER;
  *stream = state->stream;
  return Status::SUCCESS;
}

Status Handle::SetAllowTF32(bool allow) {
  if (musa_double::injected_fault("Handle.SetAllowTF32")) return Status::INTERNAL_ERROR;
  HandleState* state = HandleAccess::state(*this);
  if (!state) return Status::NOT_INITIALIZED;
  state->allow_tf32 = allow;
  return Status::SUCCESS;
}

Tensor::Tensor() : address_(nullptr), dims_{}, strides_{}, ndim_(0), type_(Type::FLOAT), format_(Format::UNKNOWN) {}

Status Tensor::SetAddr(const void* address) {
  address_ = address;
  return Status::SUCCESS;
}

Status Tensor::SetType(Type type) {
  type_ = type;
  return Status::SUCCESS;
}

Status Tensor::SetFormat(Format format) {
  format_ = format;
  return Status::SUCCESS;
}

Status Tensor::SetNdInfo(int ndim, const int64_t* dims) {
  if (ndim < 1 || ndim > 8 || !dims)
    return musa_double::refuse(Status::INVALID_PARAMETER, "Tensor.SetNdInfo", "rank %d", ndim);
  int64_t strides[8], stride = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return SetNdInfo(ndim, dims, strides);
}

Status Tensor::SetNdInfo(int ndim, const int64_t* dims, const int64_t* strides) {
  if (musa_double::injected_fault("Tensor.SetNdInfo")) return Status::INTERNAL_ERROR;
  if (ndim < 1 || ndim > 8 || !dims || !strides)
    return musa_double::refuse(Status::INVALID_PARAMETER, "Tensor.SetNdInfo", "rank %d", ndim);
  for (int i = 0; i < ndim; ++i) {
    if (dims[i] < 0 || strides[i] < 0)
      return musa_double::refuse(Status::INVALID_PARAMETER, "Tensor.SetNdInfo", "a negative size or stride");
    dims_[i] = dims[i];
    strides_[i] = strides[i];
  }
  ndim_ = ndim;
  return Status::SUCCESS;
}

Status Tensor::SetNdInfo(std::initializer_list<int64_t> dims) {
  return SetNdInfo(static_cast<int>(dims.size()), dims.begin());
}

Status Tensor::SetNdInfo(std::initializer_list<int64_t> dims, std::initializer_list<int64_t> strides) {
  if (dims.size() != strides.size()) return Status::INVALID_PARAMETER;
  return SetNdInfo(static_cast<int>(dims.size()), dims.begin(), strides.begin());
}

TensorView TensorAccess::view(const Tensor& tensor) {
  TensorView view;
  view.address = tensor.address_;
  view.ndim = tensor.ndim_;
  for (int i = 0; i < tensor.ndim_; ++i) {
    view.dims[i] = tensor.dims_[i];
    view.strides[i] = tensor.strides_[i];
  }
  if (tensor.type_ == Tensor::Type::HALF) view.kind = musa_double::Kind::f16;
  if (tensor.type_ == Tensor::Type::BFLOAT16) view.kind = musa_double::Kind::bf16;
  if (tensor.type_ == Tensor::Type::FLOAT) view.kind = musa_double::Kind::f32;
  return view;
}

}  // namespace dnn
}  // namespace musa
