/* MUSA code for nvcc: the runtime's names are CUDA's under another prefix. */
#ifndef MUSA_CUDA_RUNTIME_H
#define MUSA_CUDA_RUNTIME_H
#include <cuda_runtime.h>

#include "musa_names.h"

/* Gone from CUDA 13, where banks have 4 bytes. */
enum musaSharedMemConfig {
  musaSharedMemBankSizeDefault = 0,
  musaSharedMemBankSizeFourByte = 1,
  musaSharedMemBankSizeEightByte = 2
};

template <class Kernel>
inline cudaError_t musaFuncSetSharedMemConfig(Kernel, musaSharedMemConfig) {
  return cudaSuccess;
}

#endif
