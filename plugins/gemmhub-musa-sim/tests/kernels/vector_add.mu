// c = a + b, elementwise; the last block is partly idle.
#include <musa_runtime.h>

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

// By <<<>>>, and by the function that takes the kernel's address; returns the launch's error.
extern "C" int launch_vector_add(const float* a, const float* b, float* c, int n, musaStream_t stream) {
  vector_add<<<(n + 255) / 256, 256, 0, stream>>>(a, b, c, n);
  return musaGetLastError();
}

extern "C" int launch_vector_add_by_address(const float* a, const float* b, float* c, int n, musaStream_t stream) {
  void* arguments[] = {&a, &b, &c, &n};
  return musaLaunchKernel((const void*)vector_add, dim3((n + 255) / 256), dim3(256), arguments, 0, stream);
}
