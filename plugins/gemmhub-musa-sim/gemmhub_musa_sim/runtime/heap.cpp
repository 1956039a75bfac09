#include "heap.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "device.hpp"
#include "musa_sim.h"
#include "options.hpp"
#include "state.hpp"

namespace musa_sim {

std::map<uintptr_t, Allocation> heap;

namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
// Filling more than this would cost real memory that the program may never touch.
constexpr size_t kPoisonLimit = size_t{256} << 20;
constexpr unsigned char kPoison = 0xff;
constexpr size_t kAddressSpace = size_t{1} << 46;
size_t given_limit = 0;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

void limit_memory(size_t bytes) { given_limit = bytes; }

size_t memory_total() { return given_limit ? given_limit : description().memory; }

size_t memory_used(int device) {
  size_t used = 0;
  for (const auto& [start, allocation] : heap)
    if (allocation.device == device) used += allocation.bytes;
  return used;
}

void* allocate(size_t bytes, int device, bool host_readable) {
  if (bytes > kAddressSpace) return nullptr;
  if (device >= 0 && bytes > memory_total() - std::min(memory_total(), memory_used(device))) return nullptr;
  const size_t align = std::clamp<size_t>(options.align, 16, kPage);
  const size_t room = round_up(bytes, align);
  const size_t pages = round_up(room, kPage);
  const size_t mapped = pages + 2 * kPage;
  void* mapping = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(mapping) + kPage;
  if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, mapped);
    return nullptr;
  }
  char* start = first + pages - room;  // the end, not the start, sits at a guard page: overruns are the common fault
  if (options.poison && bytes <= kPoisonLimit) std::memset(first, kPoison, pages);
  std::memset(start + bytes, kPoison, room - bytes);
  heap[reinterpret_cast<uintptr_t>(start)] = {static_cast<char*>(mapping), mapped, bytes, room, device, host_readable};
  return start;
}

void release(uintptr_t start) {
  const auto found = heap.find(start);
  munmap(found->second.mapping, found->second.mapped);
  heap.erase(found);
}

const Allocation* holder(const void* p, uintptr_t* start) {
  auto next = heap.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (next == heap.begin()) return nullptr;
  --next;
  if (reinterpret_cast<uintptr_t>(p) >= next->first + next->second.bytes) return nullptr;
  if (start) *start = next->first;
  return &next->second;
}

std::string broken_canary() {
  for (auto& [start, allocation] : heap) {
    unsigned char* end = reinterpret_cast<unsigned char*>(start + allocation.bytes);
    const size_t gap = allocation.room - allocation.bytes;
    for (size_t i = 0; i < gap; i++) {
      if (end[i] == kPoison) continue;
      const std::string where = describe_address(reinterpret_cast<uintptr_t>(end + i));
      std::memset(end, kPoison, gap);
      return where;
    }
  }
  return "";
}

std::string describe_address(uintptr_t p) {
  char text[200];
  std::snprintf(text, sizeof text, "address 0x%zx, in no device allocation", static_cast<size_t>(p));
  auto next = heap.upper_bound(p);
  if (next != heap.end() && next->first - p < 4 * kPage)
    std::snprintf(text, sizeof text, "%zu bytes before the allocation of %zu bytes at 0x%zx",
                  static_cast<size_t>(next->first - p), next->second.bytes, static_cast<size_t>(next->first));
  if (next != heap.begin()) {
    const auto& [start, allocation] = *--next;
    const size_t end = start + allocation.bytes;
    if (p < end)
      std::snprintf(text, sizeof text, "byte %zu of the allocation of %zu bytes at 0x%zx",
                    static_cast<size_t>(p - start), allocation.bytes, static_cast<size_t>(start));
    else if (p - end < 4 * kPage)
      std::snprintf(text, sizeof text, "%zu bytes past the end of the allocation of %zu bytes at 0x%zx",
                    static_cast<size_t>(p - end), allocation.bytes, static_cast<size_t>(start));
  }
  return text;
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

size_t musaSimExtent(const void* p) {
  std::lock_guard guard(big_lock);
  uintptr_t start = 0;
  const Allocation* allocation = holder(p, &start);
  if (!allocation || allocation->device < 0) return 0;
  return start + allocation->bytes - reinterpret_cast<uintptr_t>(p);
}

int musaSimDeviceOf(const void* p) {
  std::lock_guard guard(big_lock);
  const Allocation* allocation = holder(p);
  return allocation ? allocation->device : -1;
}

size_t musaSimLive(void) {
  std::lock_guard guard(big_lock);
  return static_cast<size_t>(
      std::count_if(heap.begin(), heap.end(), [](const auto& entry) { return entry.second.device >= 0; }));
}

void musaSimLimit(size_t bytes) {
  std::lock_guard guard(big_lock);
  limit_memory(bytes);
}

}  // extern "C"
