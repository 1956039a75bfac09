// The hooks of instrumented kernels: each access is placed, checked, and counted.
#include "checker.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "counters.hpp"
#include "memory_map.hpp"
#include "options.hpp"
#include "races.hpp"
#include "reports.hpp"

namespace musa_sim {

namespace {

bool checking = false;  // the running kernel has the hooks
bool counting = false;

Report here(Kind kind, Space space, uintptr_t pc) {
  Report report{};
  report.kind = kind;
  report.space = space;
  report.block = block.number;
  report.thread = static_cast<uint16_t>(block.current ? block.current->linear : 0);
  report.pc = pc;
  return report;
}

// An access outside of every range that the kernel may touch.
void stray(Region region, uintptr_t p, size_t bytes, bool write, uintptr_t pc) {
  if (region == Region::kStack || (region == Region::kProgram && !write)) return;
  const Kind kind = region == Region::kProgram ? Kind::kProgramVariable
                    : region == Region::kHost  ? Kind::kHostMemory
                                               : Kind::kOutOfBounds;
  Report report = here(kind, Space::kOther, pc);
  std::snprintf(report.text, sizeof report.text, "%s of %zu bytes at 0x%zx", write ? "write" : "read", bytes,
                static_cast<size_t>(p));
  add_report(report);
}

void check(uintptr_t p, size_t bytes, Access access, uintptr_t pc) {
  const Range* range = nullptr;
  const Region region = locate(p, &range);
  const bool write = access != Access::kRead;
  if (!range) return stray(region, p, bytes, write, pc);
  const Space space = region == Region::kShared ? Space::kShared : Space::kGlobal;
  if (p + bytes > range->end) {
    Report report = here(Kind::kOutOfBounds, space, pc);
    report.offset = static_cast<int64_t>(p - range->start);
    const size_t at = p - range->start, whole = range->end - range->start;
    std::snprintf(report.text, sizeof report.text, "%s of %zu bytes at byte %zu of %zu", write ? "write" : "read",
                  bytes, at, whole);
    add_report(report);
    bytes = range->end - p;
  }
  check_races(*range, space, p, bytes, access, pc);
}

// The instruction before a return address is the one that called.
uintptr_t caller(const void* pc) { return reinterpret_cast<uintptr_t>(pc) - 1; }

}  // namespace

void checker_launch_starts(const Launch& launch) {
  checking = launch.kernel.instrumented;
  counting = checking && options.count;
  if (!checking) return;
  map_memory(launch);
  begin_reports();
  begin_races();
  if (counting) begin_counters(launch);
}

void checker_worker_starts(unsigned worker) {
  if (checking) set_report_worker(worker);
  if (counting) set_counter_worker(worker);
}

void checker_barrier() {
  if (counting) count_barrier();
}

void checker_block_ends() {
  if (counting) count_block_end();
}

void checker_launch_ends(const Launch& launch) {
  if (checking) collect_reports(launch);
  if (counting) collect_counters(launch);
  checking = counting = false;
}

void checker_copy_starts(const Copy& copy) {
  if (!checking) return;
  const uintptr_t pc = caller(copy.pc), to = reinterpret_cast<uintptr_t>(copy.to);
  const uintptr_t from = reinterpret_cast<uintptr_t>(copy.from);
  const size_t read = copy.bytes - copy.zeros;
  if (read) check(from, read, Access::kRead, pc);
  check(to, copy.bytes, Access::kCopyStarts, pc);
  if (!counting) return;
  count_copy(copy.bytes);
  // Two instructions for the counters, though one in the program: their addresses must differ.
  if (read) count_access(from, read, false, pc);
  count_access(to, copy.bytes, true, pc + 1);
}

void checker_copy_completes(const Copy& copy) {
  if (checking) check(reinterpret_cast<uintptr_t>(copy.to), copy.bytes, Access::kCopyCompletes, caller(copy.pc));
}

void checker_access(const void* p, size_t bytes, Access access, const void* pc) {
  if (checking) check(reinterpret_cast<uintptr_t>(p), bytes, access, caller(pc));
}

void checker_unfinished(const void* pc, const char* text) {
  if (!checking) return;
  Report report = here(Kind::kBarrier, Space::kOther, pc ? caller(pc) : 0);
  std::snprintf(report.text, sizeof report.text, "%s", text);
  add_report(report);
}

void checker_barrier_finding(const void* pc, const char* format, unsigned barrier) {
  char text[160];
  std::snprintf(text, sizeof text, format, barrier);
  checker_unfinished(pc, text);
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

void musaSimAccess(const void* p, size_t bytes, int flags, const void* pc) {
  if (!checking || !block.current) return;
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  const bool write = flags & MUSA_SIM_WRITE;
  if (!(flags & MUSA_SIM_UNALIGNED) && bytes <= 16 && address % bytes) {
    Report report = here(Kind::kMisaligned, Space::kOther, caller(pc));
    std::snprintf(report.text, sizeof report.text, "%zu bytes at 0x%zx", bytes, static_cast<size_t>(address));
    add_report(report);
    musaSimFault(musaErrorMisalignedAddress, "misaligned access");
  }
  check(address, bytes, flags & MUSA_SIM_ATOMIC ? Access::kAtomic : write ? Access::kWrite : Access::kRead, caller(pc));
  if (counting && !(flags & MUSA_SIM_UNCOUNTED)) count_access(address, bytes, write, caller(pc));
}

void musaSimTile(const void* p, size_t run, size_t lines, size_t pitch, unsigned width, int write, const void* pc) {
  if (!counting || !block.current) return;
  // How the hardware spreads a tile over lanes is not public. Counted as if each lane moved an equal share, in memory
  // order, 16 bytes at a time.
  constexpr size_t kVector = 16;
  const size_t share = run * lines / width, first = share * (block.current->linear % width);
  for (size_t done = 0; done < share;) {
    const size_t at = first + done, in_run = at % run;
    const size_t bytes = std::min({kVector, share - done, run - in_run});
    count_access(reinterpret_cast<uintptr_t>(p) + at / run * pitch + in_run, bytes, write, caller(pc));
    done += bytes;
  }
}

void musaSimFinding(const char* kind, const char* file, unsigned line, const char* text) {
  if (!checking || !block.current) return;
  const bool misaligned = std::strcmp(kind, "alignment") == 0;
  Report report = here(misaligned ? Kind::kMisaligned : Kind::kIndex, Space::kOther, 0);
  const char* name = std::strrchr(file, '/');
  std::snprintf(report.file, sizeof report.file, "%s", name ? name + 1 : file);
  std::snprintf(report.text, sizeof report.text, "%s", text);
  report.line = line;
  add_report(report);
  if (misaligned) musaSimFault(musaErrorMisalignedAddress, "misaligned access");
}

}  // extern "C"
