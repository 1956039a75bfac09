#include "objects.h"

#include <climits>
#include <map>
#include <mutex>

namespace musa_double {
namespace {

std::mutex mutex;
uintptr_t next_address = 0x6d754c0010;

template <class Opaque, class State>
std::map<Opaque, State>& registry() {
  static std::map<Opaque, State> objects;
  return objects;
}

template <class Opaque, class State>
mublasStatus_t create(const char* function, Opaque* object, State state) {
  if (injected_fault(function)) return MUBLAS_STATUS_MEMORY_ERROR;
  if (!object) return MUBLAS_STATUS_INVALID_POINTER;
  std::lock_guard lock(mutex);
  next_address += 0x40;
  *object = reinterpret_cast<Opaque>(next_address);
  registry<Opaque, State>()[*object] = state;
  return MUBLAS_STATUS_SUCCESS;
}

template <class State, class Opaque>
mublasStatus_t destroy(const char* function, Opaque object) {
  std::lock_guard lock(mutex);
  return registry<Opaque, State>().erase(object) ? MUBLAS_STATUS_SUCCESS
                                                 : refuse(MUBLAS_STATUS_INVALID_VALUE, function, "no such object");
}

template <class State, class Opaque>
std::optional<State> get(Opaque object) {
  std::lock_guard lock(mutex);
  auto& objects = registry<Opaque, State>();
  const auto found = objects.find(object);
  return found == objects.end() ? std::nullopt : std::optional<State>(found->second);
}

// Changes an object, by apply(state) -> whether it liked the value.
template <class State, class Opaque, class Apply>
mublasStatus_t change(const char* function, Opaque object, const void* value, Apply&& apply) {
  if (injected_fault(function)) return MUBLAS_STATUS_INTERNAL_ERROR;
  if (!value) return MUBLAS_STATUS_INVALID_POINTER;
  std::lock_guard lock(mutex);
  auto& objects = registry<Opaque, State>();
  const auto found = objects.find(object);
  if (found == objects.end()) return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "no such object");
  return apply(found->second) ? MUBLAS_STATUS_SUCCESS
                              : refuse(MUBLAS_STATUS_INVALID_VALUE, function, "attribute, size or value");
}

// Copies a value of exactly the right size.
template <class T>
bool read(T& member, const void* value, size_t bytes) {
  if (bytes != sizeof member) return false;
  std::memcpy(&member, value, sizeof member);
  return true;
}

template <class T>
bool write(const T& member, void* value, size_t bytes, size_t* written) {
  if (written) *written = sizeof member;
  if (bytes == 0) return written != nullptr;
  if (bytes != sizeof member || !value) return false;
  std::memcpy(value, &member, sizeof member);
  return true;
}

bool is_operation(mublasOperation_t op) { return op == MUBLAS_OP_N || op == MUBLAS_OP_T || op == MUBLAS_OP_C; }

bool is_epilogue(mublasLtEpilogue_t epilogue) {
  switch (epilogue) {
    case MUBLASLT_EPILOGUE_DEFAULT:
    case MUBLASLT_EPILOGUE_BIAS:
#ifdef MUSA_SIM_FULL_LT
    case MUBLASLT_EPILOGUE_RELU:
    case MUBLASLT_EPILOGUE_RELU_BIAS:
    case MUBLASLT_EPILOGUE_GELU:
    case MUBLASLT_EPILOGUE_GELU_BIAS:
#endif
      return true;
  }
  return false;
}

bool set(LtDescriptor& own, mublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case MUBLASLT_MATMUL_DESC_TRANSA:
      return read(own.op_a, value, bytes) && is_operation(own.op_a);
    case MUBLASLT_MATMUL_DESC_TRANSB:
      return read(own.op_b, value, bytes) && is_operation(own.op_b);
    case MUBLASLT_MATMUL_DESC_EPILOGUE:
      return read(own.epilogue, value, bytes) && is_epilogue(own.epilogue);
    case MUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return read(own.bias, value, bytes);
#ifdef MUSA_SIM_FULL_LT
    case MUBLASLT_MATMUL_DESC_POINTER_MODE: {
      mublasLtPointerMode_t mode;
      if (!read(mode, value, bytes)) return false;
      own.scalars_in_device_memory = mode == MUBLASLT_POINTER_MODE_DEVICE;
      return mode == MUBLASLT_POINTER_MODE_HOST || mode == MUBLASLT_POINTER_MODE_DEVICE;
    }
    case MUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return read(own.fast_accumulation, value, bytes);
#endif
  }
  return false;
}

bool get(const LtDescriptor& own, mublasLtMatmulDescAttributes_t attribute, void* value, size_t bytes,
         size_t* written) {
  switch (attribute) {
    case MUBLASLT_MATMUL_DESC_TRANSA:
      return write(own.op_a, value, bytes, written);
    case MUBLASLT_MATMUL_DESC_TRANSB:
      return write(own.op_b, value, bytes, written);
    case MUBLASLT_MATMUL_DESC_EPILOGUE:
      return write(own.epilogue, value, bytes, written);
    case MUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return write(own.bias, value, bytes, written);
#ifdef MUSA_SIM_FULL_LT
    case MUBLASLT_MATMUL_DESC_POINTER_MODE:
      return write(own.scalars_in_device_memory ? MUBLASLT_POINTER_MODE_DEVICE : MUBLASLT_POINTER_MODE_HOST, value,
                   bytes, written);
    case MUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return write(own.fast_accumulation, value, bytes, written);
#endif
  }
  return false;
}

bool set(LtLayout& own, mublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case MUBLASLT_MATRIX_LAYOUT_ORDER: {
      if (!read(own.order, value, bytes)) return false;
      if (own.order == MUBLASLT_ORDER_COL) return true;
#ifdef MUSA_SIM_FULL_LT
      if (own.order == MUBLASLT_ORDER_ROW) return true;
#endif
      return false;
    }
#ifdef MUSA_SIM_FULL_LT
    case MUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return read(own.batch_count, value, bytes) && own.batch_count >= 1;
    case MUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return read(own.batch_offset, value, bytes) && own.batch_offset >= 0;
#endif
  }
  return false;
}

bool get(const LtLayout& own, mublasLtMatrixLayoutAttribute_t attribute, void* value, size_t bytes, size_t* written) {
  switch (attribute) {
    case MUBLASLT_MATRIX_LAYOUT_ORDER:
      return write(own.order, value, bytes, written);
#ifdef MUSA_SIM_FULL_LT
    case MUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return write(own.batch_count, value, bytes, written);
    case MUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return write(own.batch_offset, value, bytes, written);
#endif
  }
  return false;
}

}  // namespace

std::optional<LtHandle> find(mublasLtHandle_t handle) { return get<LtHandle>(handle); }
std::optional<LtDescriptor> find(mublasLtMatmulDesc_t descriptor) { return get<LtDescriptor>(descriptor); }
std::optional<LtLayout> find(mublasLtMatrixLayout_t layout) { return get<LtLayout>(layout); }
std::optional<LtPreference> find(mublasLtMatmulPreference_t preference) { return get<LtPreference>(preference); }

}  // namespace musa_double

using namespace musa_double;

extern "C" {

mublasStatus_t mublasLtCreate(mublasLtHandle_t* handle) {
  return create("mublasLtCreate", handle, LtHandle{current_device()});
}

mublasStatus_t mublasLtDestroy(mublasLtHandle_t handle) { return destroy<LtHandle>("mublasLtDestroy", handle); }

mublasStatus_t mublasLtMatmulDescCreate(mublasLtMatmulDesc_t* desc, mublasComputeType_t computeType,
                                        musaDataType_t scaleType) {
  return create("mublasLtMatmulDescCreate", desc, LtDescriptor{computeType, scaleType});
}

mublasStatus_t mublasLtMatmulDescDestroy(mublasLtMatmulDesc_t desc) {
  return destroy<LtDescriptor>("mublasLtMatmulDescDestroy", desc);
}

mublasStatus_t mublasLtMatmulDescSetAttribute(mublasLtMatmulDesc_t desc, mublasLtMatmulDescAttributes_t attr,
                                              const void* buf, size_t sizeInBytes) {
  return change<LtDescriptor>("mublasLtMatmulDescSetAttribute", desc, buf,
                              [&](LtDescriptor& own) { return set(own, attr, buf, sizeInBytes); });
}

mublasStatus_t mublasLtMatmulDescGetAttribute(mublasLtMatmulDesc_t desc, mublasLtMatmulDescAttributes_t attr, void* buf,
                                              size_t sizeInBytes, size_t* sizeWritten) {
  const auto own = find(desc);
  return own && get(*own, attr, buf, sizeInBytes, sizeWritten) ? MUBLAS_STATUS_SUCCESS : MUBLAS_STATUS_INVALID_VALUE;
}

mublasStatus_t mublasLtMatrixLayoutCreate(mublasLtMatrixLayout_t* layout, musaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  if (rows > INT_MAX || cols > INT_MAX || ld < 0 || ld > INT_MAX) {
    return refuse(MUBLAS_STATUS_INVALID_SIZE, "mublasLtMatrixLayoutCreate", "sizes beyond 32 bits");
  }
  return create("mublasLtMatrixLayoutCreate", layout, LtLayout{type, rows, cols, ld});
}

mublasStatus_t mublasLtMatrixLayoutDestroy(mublasLtMatrixLayout_t layout) {
  return destroy<LtLayout>("mublasLtMatrixLayoutDestroy", layout);
}

mublasStatus_t mublasLtMatrixLayoutSetAttribute(mublasLtMatrixLayout_t layout, mublasLtMatrixLayoutAttribute_t attr,
                                                const void* buf, size_t sizeInBytes) {
  return change<LtLayout>("mublasLtMatrixLayoutSetAttribute", layout, buf,
                          [&](LtLayout& own) { return set(own, attr, buf, sizeInBytes); });
}

mublasStatus_t mublasLtMatrixLayoutGetAttribute(mublasLtMatrixLayout_t layout, mublasLtMatrixLayoutAttribute_t attr,
                                                void* buf, size_t sizeInBytes, size_t* sizeWritten) {
  const auto own = find(layout);
  return own && get(*own, attr, buf, sizeInBytes, sizeWritten) ? MUBLAS_STATUS_SUCCESS : MUBLAS_STATUS_INVALID_VALUE;
}

mublasStatus_t mublasLtMatmulPreferenceCreate(mublasLtMatmulPreference_t* pref) {
  return create("mublasLtMatmulPreferenceCreate", pref, LtPreference{});
}

mublasStatus_t mublasLtMatmulPreferenceDestroy(mublasLtMatmulPreference_t pref) {
  return destroy<LtPreference>("mublasLtMatmulPreferenceDestroy", pref);
}

mublasStatus_t mublasLtMatmulPreferenceSetAttribute(mublasLtMatmulPreference_t pref,
                                                    mublasLtMatmulPreferenceAttributes_t attr, const void* buf,
                                                    size_t sizeInBytes) {
  return change<LtPreference>("mublasLtMatmulPreferenceSetAttribute", pref, buf, [&](LtPreference& own) {
    return attr == MUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && read(own.workspace_bytes, buf, sizeInBytes);
  });
}

}  // extern "C"
