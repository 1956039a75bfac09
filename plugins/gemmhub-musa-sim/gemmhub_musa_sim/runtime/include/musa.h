/* The part of the MUSA driver API that the simulator has. */
#ifndef MUSA_SIM_MUSA_H
#define MUSA_SIM_MUSA_H
#include <stddef.h>

#include "driver_types.h"
#include "musa_version.h"

typedef enum MUresult {
  MUSA_SUCCESS = 0,
  MUSA_ERROR_INVALID_VALUE = 1,
  MUSA_ERROR_OUT_OF_MEMORY = 2,
  MUSA_ERROR_NOT_INITIALIZED = 3,
  MUSA_ERROR_NO_DEVICE = 100,
  MUSA_ERROR_INVALID_DEVICE = 101,
  MUSA_ERROR_INVALID_CONTEXT = 201,
  MUSA_ERROR_NOT_SUPPORTED = 801,
  MUSA_ERROR_UNKNOWN = 999
} MUresult;

typedef int MUdevice;
typedef unsigned long long MUdeviceptr;
typedef struct MUmod_st* MUmodule;
typedef struct MUstream_st* MUstream;
typedef struct MUevent_st* MUevent;

typedef unsigned muuint32_t;
typedef unsigned long muuint64_t;

/* A tensor in global memory, for the tensor copies of mp_31. Public sources give the names; the numbers are made up, but
 * for that of FLOAT32. */
typedef struct __attribute__((aligned(16))) MUtensorDescriptor {
  muuint64_t opaque[16];
} MUtensorDescriptor;

typedef enum MUtensorDescriptorDataType {
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT8,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT16,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT32,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_INT64,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT8,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT16,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT32,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_UINT64,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT32 = 8,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT16,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_FLOAT64,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_BFLOAT16,
  MU_TENSOR_DESCRIPTOR_DATA_TYPE_TFLOAT32
} MUtensorDescriptorDataType;

typedef enum MUtensorDescriptorInterleave { MU_TENSOR_DESCRIPTOR_INTERLEAVE_NONE } MUtensorDescriptorInterleave;

#ifdef __cplusplus
extern "C" {
#endif

MUresult muInit(unsigned flags);
MUresult muDriverGetVersion(int* version);
MUresult muDeviceGetCount(int* count);
MUresult muDeviceGet(MUdevice* device, int ordinal);
MUresult muDeviceGetName(char* name, int length, MUdevice device);
MUresult muDeviceGetAttribute(int* value, int attribute, MUdevice device);
MUresult muMemAlloc_v2(MUdeviceptr* p, size_t bytes);
MUresult muMemFree_v2(MUdeviceptr p);
MUresult muMemcpyHtoD_v2(MUdeviceptr to, const void* from, size_t bytes);
MUresult muMemcpyDtoH_v2(void* to, MUdeviceptr from, size_t bytes);
MUresult muThreadExchangeStreamCaptureMode(int* mode);
/* `sizes` in elements, innermost first; `strides` of the dimensions from the second on, in bytes; `fill`: the bits of an
 * element outside of the tensor. */
MUresult muTensorDescriptorEncode(MUtensorDescriptor* descriptor, MUtensorDescriptorDataType type, muuint32_t rank,
                                  void* address, const muuint64_t* sizes, const muuint64_t* strides,
                                  MUtensorDescriptorInterleave interleave, muuint64_t fill);
MUresult muModuleLoadData(MUmodule* module, const void* image);

#ifdef __cplusplus
}
#endif
#endif
