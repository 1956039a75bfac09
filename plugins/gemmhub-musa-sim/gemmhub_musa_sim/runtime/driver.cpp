// The driver library libmusa: the few mu* functions that programs use, over whichever libmusart is loaded.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "musa.h"
#include "musa_runtime_api.h"
#include "tensor.hpp"

namespace {

bool initialised = false;

// The runtime's function of that type and name. Looked up late: programs load the driver first.
template <class Function>
Function* runtime(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found)
    if (void* library = dlopen("libmusart.so", RTLD_NOW | RTLD_NOLOAD)) found = dlsym(library, name);
  return reinterpret_cast<Function*>(found);
}

// Calls a runtime function; its error numbers below 900 are the driver's too.
template <class Function, class... Arguments>
MUresult call(Function* /* for its type */, const char* name, Arguments... arguments) {
  if (!initialised) return MUSA_ERROR_NOT_INITIALIZED;
  Function* function = runtime<Function>(name);
  return function ? static_cast<MUresult>(function(arguments...)) : MUSA_ERROR_NOT_SUPPORTED;
}

#define CALL(function, ...) call(static_cast<decltype(&function)>(nullptr), #function, __VA_ARGS__)

uint32_t bytes_of(MUtensorDescriptorDataType type) {
  switch (type) {
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT8:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT8: return 1;
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT16:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT16:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT16:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_BFLOAT16: return 2;
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT32:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT32:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT32:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_TFLOAT32: return 4;
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT64:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT64:
    case MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT64: return 8;
  }
  return 0;
}

void* address(MUdeviceptr p) { return reinterpret_cast<void*>(p); }

}  // namespace

extern "C" {

MUresult muInit(unsigned flags) {
  if (flags) return MUSA_ERROR_INVALID_VALUE;
  initialised = true;
  return MUSA_SUCCESS;
}

MUresult muDriverGetVersion(int* version) {
  if (!version) return MUSA_ERROR_INVALID_VALUE;
  *version = MUSA_SIM_SDK_NUMBER;
  return MUSA_SUCCESS;
}

MUresult muDeviceGetCount(int* count) { return CALL(musaGetDeviceCount, count); }

MUresult muDeviceGet(MUdevice* device, int ordinal) {
  int count = 0;
  if (!device) return MUSA_ERROR_INVALID_VALUE;
  if (const MUresult error = muDeviceGetCount(&count)) return error;
  if (ordinal < 0 || ordinal >= count) return MUSA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return MUSA_SUCCESS;
}

MUresult muDeviceGetName(char* name, int length, MUdevice device) {
  musaDeviceProp properties;
  if (!name || length <= 0) return MUSA_ERROR_INVALID_VALUE;
  if (const MUresult error = CALL(musaGetDeviceProperties, &properties, device)) return error;
  std::snprintf(name, static_cast<size_t>(length), "%s", properties.name);
  return MUSA_SUCCESS;
}

MUresult muDeviceGetAttribute(int* value, int attribute, MUdevice device) {
  return CALL(musaDeviceGetAttribute, value, static_cast<musaDeviceAttr>(attribute), device);
}

MUresult muMemAlloc_v2(MUdeviceptr* p, size_t bytes) {
  return p ? CALL(musaMalloc, reinterpret_cast<void**>(p), bytes) : MUSA_ERROR_INVALID_VALUE;
}

MUresult muMemFree_v2(MUdeviceptr p) { return CALL(musaFree, address(p)); }

MUresult muMemcpyHtoD_v2(MUdeviceptr to, const void* from, size_t bytes) {
  return CALL(musaMemcpy, address(to), from, bytes, musaMemcpyHostToDevice);
}

MUresult muMemcpyDtoH_v2(void* to, MUdeviceptr from, size_t bytes) {
  return CALL(musaMemcpy, to, static_cast<const void*>(address(from)), bytes, musaMemcpyDeviceToHost);
}

// muBLAS refers to it; stream capture is not simulated.
MUresult muThreadExchangeStreamCaptureMode(int* mode) { return mode ? MUSA_SUCCESS : MUSA_ERROR_INVALID_VALUE; }

// Addresses and strides are multiples of 16 bytes, as in all public code: what a card requires is not public.
MUresult muTensorDescriptorEncode(MUtensorDescriptor* descriptor, MUtensorDescriptorDataType type, muuint32_t rank,
                                  void* base, const muuint64_t* sizes, const muuint64_t* strides,
                                  MUtensorDescriptorInterleave interleave, muuint64_t fill) {
  using namespace musa_sim;
  constexpr muuint64_t kMost = 1ull << 32;
  const uint32_t element = bytes_of(type);
  if (!descriptor || !element || rank < 1 || rank > kTensorRank || !sizes || (rank > 1 && !strides) ||
      interleave != MU_TENSOR_DESCRIPTOR_INTERLEAVE_NONE || !base || reinterpret_cast<uintptr_t>(base) % 16)
    return MUSA_ERROR_INVALID_VALUE;
  Tensor tensor{Tensor::kMagic, reinterpret_cast<uintptr_t>(base), fill, rank, element, {}, {}};
  for (unsigned i = 0; i < rank; i++) {
    tensor.size[i] = sizes[i];
    tensor.step[i] = i ? strides[i - 1] : element;
    if (!sizes[i] || sizes[i] > kMost || (i && (!tensor.step[i] || tensor.step[i] % 16))) return MUSA_ERROR_INVALID_VALUE;
  }
  store(tensor, descriptor);
  return MUSA_SUCCESS;
}

// A simulated program holds its kernels in itself: there are no modules to load.
MUresult muModuleLoadData(MUmodule*, const void*) { return MUSA_ERROR_NOT_SUPPORTED; }

}  // extern "C"
