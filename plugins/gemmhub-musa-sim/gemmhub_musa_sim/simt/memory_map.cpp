#include "memory_map.hpp"

#include <link.h>

#include <algorithm>
#include <vector>

#include "block.hpp"
#include "heap.hpp"

namespace musa_sim {

namespace {

std::vector<Range> shared, global, program;
Range stacks;
const Range* last_global = nullptr;  // threads touch one allocation many times in a row
constexpr uintptr_t kNear = 4096;    // so far beside an allocation an address is taken for an overrun of it

bool holds(const Range& range, uintptr_t p) { return p >= range.start && p < range.end; }

// Everything that the modules of the kernel and of this library were loaded to.
void map_program(const void* function) {
  program.clear();
  struct Search {
    uintptr_t wanted[2];
  } search{{reinterpret_cast<uintptr_t>(function), reinterpret_cast<uintptr_t>(&last_global)}};
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* data) {
        const Search& search = *static_cast<Search*>(data);
        Range whole{~uintptr_t{0}, 0, 0};
        for (int i = 0; i < module->dlpi_phnum; i++) {
          const auto& header = module->dlpi_phdr[i];
          if (header.p_type != PT_LOAD) continue;
          whole.start = std::min<uintptr_t>(whole.start, module->dlpi_addr + header.p_vaddr);
          whole.end = std::max<uintptr_t>(whole.end, module->dlpi_addr + header.p_vaddr + header.p_memsz);
        }
        for (const uintptr_t wanted : search.wanted)
          if (holds(whole, wanted)) program.push_back(whole);
        return 0;
      },
      &search);
}

}  // namespace

void map_memory(const Launch& launch) {
  const auto add = [](std::vector<Range>& to, uintptr_t start, size_t bytes) {
    const size_t shadow = to.empty() ? 0 : to.back().shadow + (to.back().end - to.back().start);
    to.push_back({start, start + bytes, (shadow + 15) / 16 * 16});
  };
  shared.clear();
  global.clear();
  last_global = nullptr;
  add(shared, reinterpret_cast<uintptr_t>(launch.shared.start), launch.shared.bytes);
  add(shared, reinterpret_cast<uintptr_t>(musaSimDynamicShared), launch.dynamic_shared);
  for (const auto& [start, allocation] : heap)
    if (allocation.device == launch.device || allocation.host_readable) add(global, start, allocation.bytes);
  const char* top = block.stacks.at(block.threads.size());
  stacks = {reinterpret_cast<uintptr_t>(block.stacks.at(0)), reinterpret_cast<uintptr_t>(top), 0};
  map_program(launch.kernel.function);
}

size_t shared_bytes() { return shared.back().shadow + (shared.back().end - shared.back().start); }

size_t global_bytes() {
  return global.empty() ? 0 : global.back().shadow + (global.back().end - global.back().start);
}

Region locate(uintptr_t p, const Range** range) {
  if (holds(stacks, p)) return Region::kStack;
  for (const Range& one : shared) {
    if (!holds(one, p)) continue;
    *range = &one;
    return Region::kShared;
  }
  if (last_global && holds(*last_global, p)) {
    *range = last_global;
    return Region::kGlobal;
  }
  const auto before_start = [](uintptr_t a, const Range& b) { return a < b.start; };
  auto next = std::upper_bound(global.begin(), global.end(), p, before_start);
  if (next != global.begin() && holds(*(next - 1), p)) {
    *range = last_global = &*(next - 1);
    return Region::kGlobal;
  }
  for (const Range& one : program)
    if (holds(one, p)) return Region::kProgram;
  const bool before = next != global.end() && next->start - p <= kNear;
  const bool after = next != global.begin() && p - (next - 1)->end <= kNear;
  const uintptr_t dynamic = reinterpret_cast<uintptr_t>(musaSimDynamicShared);
  const bool beyond = p >= dynamic && p < dynamic + kMostDynamicShared;
  return before || after || beyond || p < kNear ? Region::kNowhere : Region::kHost;
}

}  // namespace musa_sim
