// The C API of muDNN from 5.1 on. Handles and descriptors are known by their addresses, never read after destroy.
#pragma GCC visibility push(default)
#include <mudnn.h>
#pragma GCC visibility pop

#include <map>
#include <mutex>

#include "matmul.h"

using namespace musa_double;

namespace {

struct HandleState {
  int device;
  musaStream_t stream = nullptr;
};

struct MatMulState {
  bool is_set = false, tensor_mode = false, transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0, gamma = 1;
};

std::mutex mutex;

// Objects of one sort by their opaque address. Addresses are not given out twice.
template <class Opaque, class State>
class Registry {
 public:
  Opaque add(State state) {
    std::lock_guard lock(mutex);
    next_ += 0x40;
    const auto opaque = reinterpret_cast<Opaque>(next_);
    objects_[opaque] = state;
    return opaque;
  }
  bool remove(Opaque opaque) {
    std::lock_guard lock(mutex);
    return objects_.erase(opaque) != 0;
  }
  std::optional<State> get(Opaque opaque) {
    std::lock_guard lock(mutex);
    const auto found = objects_.find(opaque);
    return found == objects_.end() ? std::nullopt : std::optional<State>(found->second);
  }
  bool set(Opaque opaque, State state) {
    std::lock_guard lock(mutex);
    const auto found = objects_.find(opaque);
    if (found != objects_.end()) found->second = state;
    return found != objects_.end();
  }

 private:
  std::map<Opaque, State> objects_;
  uintptr_t next_ = 0x6d75000010;
};

Registry<mudnnHandle_t, HandleState> handles;
Registry<mudnnTensorDescriptor_t, TensorView> tensors;
Registry<mudnnBatchMatMulDescriptor_t, MatMulState> products;

mudnnStatus_t status(Outcome outcome) {
  switch (outcome) {
    case Outcome::success:
      return MUDNN_STATUS_SUCCESS;
    case Outcome::invalid_parameter:
      return MUDNN_STATUS_INVALID_PARAMETER;
    case Outcome::not_initialized:
      return MUDNN_STATUS_NOT_INITIALIZED;
    case Outcome::alloc_failed:
      return MUDNN_STATUS_ALLOC_FAILED;
    case Outcome::not_supported:
      return MUDNN_STATUS_NOT_SUPPORTED;
    case Outcome::internal_error:
      return MUDNN_STATUS_INTERNAL_ERROR;
    case Outcome::arch_mismatch:
      return MUDNN_STATUS_ARCH_MISMATCH;
    case Outcome::execution_failed:
      return MUDNN_STATUS_EXECUTION_FAILED;
  }
  __builtin_unreachable();
}

std::optional<Kind> kind_of(mudnnDataType_t type) {
  if (type == MUDNN_DATA_HALF) return Kind::f16;
  if (type == MUDNN_DATA_BFLOAT16) return Kind::bf16;
  if (type == MUDNN_DATA_FLOAT) return Kind::f32;
  return std::nullopt;
}

// The call that descriptors and addresses make up, less workspace and bias.
Outcome describe(const char* function, mudnnHandle_t handle, mudnnBatchMatMulDescriptor_t desc,
                 mudnnTensorDescriptor_t a, mudnnTensorDescriptor_t b, mudnnTensorDescriptor_t c,
                 mudnnTensorDescriptor_t d, MatMulCall& call) {
  if (injected_fault(function)) return Outcome::internal_error;
  const auto handle_state = handles.get(handle);
  if (!handle_state) return refuse(Outcome::not_initialized, function, "no such handle");
  const auto product = products.get(desc);
  if (!product || !product->is_set)
    return refuse(Outcome::invalid_parameter, function, "the product's descriptor is missing or was never set");
  const std::pair<mudnnTensorDescriptor_t, TensorView*> views[] = {
      {a, &call.a}, {b, &call.b}, {c, &call.c}, {d, &call.d}};
  for (const auto& [opaque, view] : views) {
    const auto found = tensors.get(opaque);
    if (!found) return refuse(Outcome::invalid_parameter, function, "no such tensor descriptor");
    *view = *found;
  }
  call.function = function;
  call.device = handle_state->device;
  call.stream = handle_state->stream;
  call.rank = call.d.ndim == 2 ? 2 : 3;
  call.tensor_mode = product->tensor_mode;
  call.allow_tf32 = false;  // the math type alone decides
  call.transpose_a = product->transpose_a;
  call.transpose_b = product->transpose_b;
  call.alpha = product->alpha;
  call.beta = product->beta;
  call.gamma = product->gamma;
  return Outcome::success;
}

}  // namespace

extern "C" {

mudnnStatus_t mudnnCreate(mudnnHandle_t* handle) {
  if (injected_fault("mudnnCreate")) return MUDNN_STATUS_ALLOC_FAILED;
  if (!handle) return MUDNN_STATUS_INVALID_PARAMETER;
  *handle = handles.add({current_device()});
  return MUDNN_STATUS_SUCCESS;
}

mudnnStatus_t mudnnDestroy(mudnnHandle_t handle) {
  return handles.remove(handle) ? MUDNN_STATUS_SUCCESS
                                : refuse(MUDNN_STATUS_NOT_INITIALIZED, "mudnnDestroy", "no such handle");
}

mudnnStatus_t mudnnSetStream(mudnnHandle_t handle, musaStream_t stream) {
  if (injected_fault("mudnnSetStream")) return MUDNN_STATUS_INTERNAL_ERROR;
  auto state = handles.get(handle);
  if (!state) return refuse(MUDNN_STATUS_NOT_INITIALIZED, "mudnnSetStream", "no such handle");
  if (stream && !musaSimStreamAlive(stream))
    return refuse(MUDNN_STATUS_INVALID_PARAMETER, "mudnnSetStream", "no such stream");
  state->stream = stream;
  handles.set(handle, *state);
  return MUDNN_STATUS_SUCCESS;
}

mudnnStatus_t mudnnGetStream(mudnnHandle_t handle, musaStream_t* stream) {
  const auto state = handles.get(handle);
  if (!state) return refuse(MUDNN_STATUS_NOT_INITIALIZED, "mudnnGetStream", "no such handle");
  if (!stream) return MUDNN_STATUS_INVALID_PARAMETER;
  *stream = state->stream;
  return MUDNN_STATUS_SUCCESS;
}

mudnnStatus_t mudnnCreateTensorDescriptor(mudnnTensorDescriptor_t* desc) {
  if (injected_fault("mudnnCreateTensorDescriptor")) return MUDNN_STATUS_ALLOC_FAILED;
  if (!desc) return MUDNN_STATUS_INVALID_PARAMETER;
  *desc = tensors.add({});
  return MUDNN_STATUS_SUCCESS;
}

mudnnStatus_t mudnnDestroyTensorDescriptor(mudnnTensorDescriptor_t desc) {
  return tensors.remove(desc) ? MUDNN_STATUS_SUCCESS : MUDNN_STATUS_INVALID_PARAMETER;
}

mudnnStatus_t mudnnSetTensorNdDescriptorWithScale(mudnnTensorDescriptor_t desc, mudnnTensorFormat_t format,
                                                  mudnnDataType_t type, int ndim, const int64_t* dims,
                                                  const int64_t* strides, float scale) {
  const char* const function = "mudnnSetTensorNdDescriptorWithScale";
  if (injected_fault(function)) return MUDNN_STATUS_INTERNAL_ERROR;
  if (ndim < 1 || ndim > 8 || !dims || !strides)
    return refuse(MUDNN_STATUS_INVALID_PARAMETER, function, "rank %d", ndim);
  if (format != MUDNN_TENSOR_NCHW)
    return refuse(MUDNN_STATUS_INVALID_PARAMETER, function, "format %d", static_cast<int>(format));
  if (scale != 1.0f) return refuse(MUDNN_STATUS_NOT_SUPPORTED, function, "scale %g", static_cast<double>(scale));
  TensorView view;
  view.ndim = ndim;
  view.kind = kind_of(type);
  for (int i = 0; i < ndim; ++i) {
    if (dims[i] < 0 || strides[i] < 0)
      return refuse(MUDNN_STATUS_INVALID_PARAMETER, function, "a negative size or stride");
    view.dims[i] = dims[i];
    view.strides[i] = strides[i];
  }
  return tensors.set(desc, view) ? MUDNN_STATUS_SUCCESS
                                 : refuse(MUDNN_STATUS_INVALID_PARAMETER, function, "no such descriptor");
}

mudnnStatus_t mudnnCreateBatchMatMulDescriptor(mudnnBatchMatMulDescriptor_t* desc) {
  if (injected_fault("mudnnCreateBatchMatMulDescriptor")) return MUDNN_STATUS_ALLOC_FAILED;
  if (!desc) return MUDNN_STATUS_INVALID_PARAMETER;
  *desc = products.add({});
  return MUDNN_STATUS_SUCCESS;
}

mudnnStatus_t mudnnDestroyBatchMatMulDescriptor(mudnnBatchMatMulDescriptor_t desc) {
  return products.remove(desc) ? MUDNN_STATUS_SUCCESS : MUDNN_STATUS_INVALID_PARAMETER;
}

mudnnStatus_t mudnnSetBatchMatMulDescriptorEx(mudnnBatchMatMulDescriptor_t desc, mudnnMathType_t math, bool transa,
                                              bool transb, bool reserved, mudnnMatMulLtEpilogueMode_t epilogue,
                                              int zero, double alpha, double beta, double gamma) {
  const char* const function = "mudnnSetBatchMatMulDescriptorEx";
  if (injected_fault(function)) return MUDNN_STATUS_INTERNAL_ERROR;
  if (math != MUDNN_FMA_MATH && math != MUDNN_TENSOR_OP_MATH)
    return refuse(MUDNN_STATUS_INVALID_PARAMETER, function, "math %d", static_cast<int>(math));
  if (reserved || zero || epilogue != MUDNN_MATMULLT_EPILOGUE_DEFAULT)
    return refuse(MUDNN_STATUS_NOT_SUPPORTED, function, "an epilogue or option");
  MatMulState state{true, math == MUDNN_TENSOR_OP_MATH, transa, transb, alpha, beta, gamma};
  return products.set(desc, state) ? MUDNN_STATUS_SUCCESS
                                   : refuse(MUDNN_STATUS_INVALID_PARAMETER, function, "no such descriptor");
}

mudnnStatus_t mudnnBatchMatmulGetWorkspaceSize(mudnnHandle_t handle, mudnnBatchMatMulDescriptor_t desc,
                                               mudnnTensorDescriptor_t aDesc, mudnnTensorDescriptor_t bDesc,
                                               mudnnTensorDescriptor_t cDesc, mudnnTensorDescriptor_t dDesc,
                                               size_t* bytes) {
  if (!bytes) return MUDNN_STATUS_INVALID_PARAMETER;
  MatMulCall call{};
  const Outcome outcome = describe("mudnnBatchMatmulGetWorkspaceSize", handle, desc, aDesc, bDesc, cDesc, dDesc, call);
  return status(outcome == Outcome::success ? workspace_size(call, *bytes) : outcome);
}

mudnnStatus_t mudnnBatchMatMulBias(mudnnHandle_t handle, mudnnBatchMatMulDescriptor_t desc,
                                   mudnnTensorDescriptor_t aDesc, const void* a, mudnnTensorDescriptor_t bDesc,
                                   const void* b, mudnnTensorDescriptor_t cDesc, const void* c,
                                   mudnnTensorDescriptor_t dDesc, void* d, mudnnTensorDescriptor_t biasDesc,
                                   const void* bias, void* workspace, size_t workspaceBytes) {
  const char* const function = "mudnnBatchMatMulBias";
  MatMulCall call{};
  const Outcome outcome = describe(function, handle, desc, aDesc, bDesc, cDesc, dDesc, call);
  if (outcome != Outcome::success) return status(outcome);
  call.a.address = a;
  call.b.address = b;
  call.c.address = c;
  call.d.address = d;
  if (biasDesc || bias) {
    const auto found = tensors.get(biasDesc);
    if (!found || !bias)
      return refuse(MUDNN_STATUS_INVALID_PARAMETER, function, "bias: its descriptor or its address is missing");
    call.bias = *found;
    call.bias.address = bias;
  }
  return status(run(call, [&](size_t bytes) {
    const auto keep = [](void*) {};  // the caller's
    return Scratch(bytes <= workspaceBytes ? workspace : nullptr, keep);
  }));
}

}  // extern "C"
