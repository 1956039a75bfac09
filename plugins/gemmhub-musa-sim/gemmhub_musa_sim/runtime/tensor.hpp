// What a tensor descriptor holds: made by libmusa's muTensorDescriptorEncode, read by kernels' tensor copies.
#pragma once
#include <cstdint>
#include <cstring>

#include "musa.h"

namespace musa_sim {

constexpr unsigned kTensorRank = 5;

struct Tensor {
  static constexpr uint64_t kMagic = 0x4d54454e53303331;
  uint64_t magic, address, fill;
  uint32_t rank, element;  // bytes of an element
  uint64_t size[kTensorRank], step[kTensorRank];  // in elements; in bytes
};
static_assert(sizeof(Tensor) <= sizeof(MUtensorDescriptor), "a tensor fits into a descriptor");

inline void store(const Tensor& tensor, MUtensorDescriptor* descriptor) {
  std::memset(descriptor, 0, sizeof *descriptor);
  std::memcpy(descriptor, &tensor, sizeof tensor);
}

}  // namespace musa_sim
