/* Types and constants of the MUSA runtime, in the simulator's own words. Numbers that no public source states follow
 * CUDA's, except where a program might be tempted to mirror a structure: those have a layout of their own. */
#ifndef MUSA_SIM_DRIVER_TYPES_H
#define MUSA_SIM_DRIVER_TYPES_H
#include <stddef.h>

typedef enum musaError {
  musaSuccess = 0,
  musaErrorInvalidValue = 1,
  musaErrorMemoryAllocation = 2,
  musaErrorInitializationError = 3,
  musaErrorInvalidConfiguration = 9,
  musaErrorInvalidMemcpyDirection = 21,
  musaErrorInvalidDeviceFunction = 98,
  musaErrorNoDevice = 100,
  musaErrorInvalidDevice = 101,
  musaErrorNoKernelImageForDevice = 209,
  musaErrorInvalidResourceHandle = 400,
  musaErrorNotReady = 600,
  musaErrorIllegalAddress = 700,
  musaErrorLaunchOutOfResources = 701,
  musaErrorLaunchTimeout = 702,
  musaErrorAssert = 710,
  musaErrorMisalignedAddress = 716,
  musaErrorLaunchFailure = 719,
  musaErrorNotSupported = 801,
  musaErrorUnknown = 999
} musaError_t;

typedef enum musaMemcpyKind {
  musaMemcpyHostToHost = 0,
  musaMemcpyHostToDevice = 1,
  musaMemcpyDeviceToHost = 2,
  musaMemcpyDeviceToDevice = 3,
  musaMemcpyDefault = 4
} musaMemcpyKind;

typedef enum musaSharedMemConfig {
  musaSharedMemBankSizeDefault = 0,
  musaSharedMemBankSizeFourByte = 1,
  musaSharedMemBankSizeEightByte = 2
} musaSharedMemConfig;

typedef enum musaFuncAttribute {
  musaFuncAttributeMaxDynamicSharedMemorySize = 8,
  musaFuncAttributePreferredSharedMemoryCarveout = 9
} musaFuncAttribute;

typedef enum musaDeviceAttr {
  musaDevAttrMaxThreadsPerBlock = 1,
  musaDevAttrMaxBlockDimX = 2,
  musaDevAttrMaxBlockDimY = 3,
  musaDevAttrMaxBlockDimZ = 4,
  musaDevAttrMaxGridDimX = 5,
  musaDevAttrMaxGridDimY = 6,
  musaDevAttrMaxGridDimZ = 7,
  musaDevAttrMaxSharedMemoryPerBlock = 8,
  musaDevAttrTotalConstantMemory = 9,
  musaDevAttrWarpSize = 10,
  musaDevAttrMaxRegistersPerBlock = 12,
  musaDevAttrClockRate = 13,
  musaDevAttrMultiProcessorCount = 16,
  musaDevAttrMemoryClockRate = 36,
  musaDevAttrGlobalMemoryBusWidth = 37,
  musaDevAttrL2CacheSize = 38,
  musaDevAttrMaxThreadsPerMultiProcessor = 39,
  musaDevAttrComputeCapabilityMajor = 75,
  musaDevAttrComputeCapabilityMinor = 76,
  musaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  musaDevAttrMaxSharedMemoryPerBlockOptin = 97
} musaDeviceAttr;

/* Flags. */
#define musaHostAllocDefault 0x00
#define musaHostAllocPortable 0x01
#define musaHostAllocMapped 0x02
#define musaMemAttachGlobal 0x01
#define musaStreamDefault 0x00
#define musaStreamNonBlocking 0x01
#define musaEventDefault 0x00
#define musaEventBlockingSync 0x01
#define musaEventDisableTiming 0x02

typedef struct MUstream_st* musaStream_t;
typedef struct MUevent_st* musaEvent_t;
#define musaStreamLegacy ((musaStream_t)0x1)
#define musaStreamPerThread ((musaStream_t)0x2)

/* The vendor's layout is not public. This order is the simulator's: read members by name, with this header. */
typedef struct musaDeviceProp {
  int multiProcessorCount;
  int warpSize;
  size_t totalGlobalMem;
  char name[192];
  int major, minor;
  size_t sharedMemPerBlock;
  size_t sharedMemPerMultiprocessor;
  int maxThreadsPerBlock;
  int maxThreadsPerMultiProcessor;
  int regsPerBlock;
  int l2CacheSize;
  int clockRate;
} musaDeviceProp;

#endif
