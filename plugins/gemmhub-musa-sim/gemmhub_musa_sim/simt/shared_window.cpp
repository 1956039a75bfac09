#include "shared_window.hpp"

#include <cstdio>

#include "musa_sim_device.h"

namespace musa_sim {

namespace {

struct Part {
  char* start = nullptr;
  size_t bytes = 0;
  uint32_t number = 0;
};

Part parts[2];

[[noreturn]] void fail(const char* instruction, const char* format, unsigned long long number, size_t bytes) {
  char text[200];
  const int used = std::snprintf(text, sizeof text, "%s: ", instruction);
  std::snprintf(text + used, sizeof text - static_cast<size_t>(used), format, number, bytes);
  musaSimFault(musaErrorIllegalAddress, text);
}

}  // namespace

void set_shared_window(const Launch& launch) {
  constexpr size_t kStep = 4096;
  parts[0] = {launch.shared.start, launch.shared.bytes, 0};
  const size_t dynamic = (launch.shared.bytes + kStep - 1) / kStep * kStep;
  parts[1] = {musaSimDynamicShared, launch.dynamic_shared, static_cast<uint32_t>(dynamic)};
}

uint32_t shared_number(const void* address, const char* instruction) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(address);
  if (value < kSharedWindow) return static_cast<uint32_t>(value);
  for (const Part& part : parts) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(part.start);
    if (value >= start && value - start < part.bytes) return part.number + static_cast<uint32_t>(value - start);
  }
  fail(instruction, "0x%llx is not in shared memory", value, 0);
}

char* shared_address(uint32_t number, size_t bytes, const char* instruction) {
  for (const Part& part : parts)
    if (number >= part.number && number - part.number + bytes <= part.bytes) return part.start + (number - part.number);
  fail(instruction, "0x%llx and %zu bytes from there on are not in the kernel's shared memory", number, bytes);
}

}  // namespace musa_sim

extern "C" {

unsigned musaSimSharedNumber(const void* address) {
  return musa_sim::shared_number(address, "__cvta_generic_to_shared");
}

char* musaSimSharedAddress(const void* number_or_address, size_t bytes) {
  constexpr char kName[] = "an access to shared memory";
  return musa_sim::shared_address(musa_sim::shared_number(number_or_address, kName), bytes, kName);
}

}  // extern "C"
