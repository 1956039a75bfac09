#include "reports.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <new>
#include <tuple>
#include <vector>

#include "fault.hpp"
#include "json.hpp"
#include "musa_sim.h"
#include "options.hpp"
#include "places.hpp"
#include "state.hpp"

namespace musa_sim {

namespace {

constexpr unsigned kMostReports = 128;  // distinct ones, for each worker and launch

struct List {
  unsigned count;
  Report reports[kMostReports];
};

struct Known {
  Report report;
  std::string kernel, at, against;
  dim3 grid;
};

List* lists = nullptr;  // shared, one for each worker
List* own = nullptr;
std::map<std::tuple<Kind, std::string, std::string>, Known> found;  // since the last clear
std::string json;

const char* words(const Report& report) {
  switch (report.kind) {
    case Kind::kReadAfterWrite: return "read-after-write race";
    case Kind::kWriteAfterRead: return "write-after-read race";
    case Kind::kWriteAfterWrite: return "write-after-write race";
    case Kind::kInFlight: return "access to bytes of an asynchronous copy that nobody waited for";
    case Kind::kBeingRead: return "write to bytes that an asynchronous operation is reading";
    case Kind::kBarrier: return "misuse of asynchronous barriers or copies";
    case Kind::kUninitialised: return "read of bytes that were never written";
    case Kind::kOutOfBounds: return "access out of bounds";
    case Kind::kHostMemory: return "access to host memory";
    case Kind::kProgramVariable: return "write to a variable of the program, which the simulator does not keep";
    case Kind::kMisaligned: return "misaligned access";
    case Kind::kIndex: return "index out of bounds";
  }
  return "";
}

const char* words(Space space) {
  return space == Space::kShared ? "shared" : space == Space::kGlobal ? "global" : "other";
}

std::string block_text(uint32_t number, dim3 grid) {
  char text[60];
  std::snprintf(text, sizeof text, "(%u, %u, %u)", number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y);
  return text;
}

std::string sentence(const Known& known) {
  const Report& report = known.report;
  std::string text = known.kernel + ": " + words(report);
  if (report.space != Space::kOther) text += std::string(", ") + words(report.space) + " memory";
  text += " at " + known.at;
  if (!known.against.empty()) text += " against " + known.against;
  if (report.text[0]) text += std::string(": ") + report.text;
  text += " [block " + block_text(report.block, known.grid) + " thread " + std::to_string(report.thread);
  if (report.between_blocks)
    text += ", block " + block_text(report.other_block, known.grid) + " thread " + std::to_string(report.other_thread);
  else if (report.other)
    text += " and thread " + std::to_string(report.other_thread);
  return text + ", " + std::to_string(report.count) + " times]";
}

}  // namespace

void begin_reports() {
  if (!lists) {
    void* mapping = mmap(nullptr, sizeof(List) * kMostWorkers, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    lists = static_cast<List*>(mapping);
  }
  for (unsigned i = 0; i < kMostWorkers; i++) lists[i].count = 0;
  own = &lists[0];
}

void set_report_worker(unsigned worker) { own = &lists[worker]; }

void add_report(const Report& report) {
  for (unsigned i = 0; i < own->count; i++) {
    Report& known = own->reports[i];
    if (known.kind != report.kind || known.pc != report.pc || known.other != report.other || known.line != report.line)
      continue;
    known.count++;
    return;
  }
  if (own->count == kMostReports) return;
  own->reports[own->count] = report;
  own->reports[own->count].count = 1;
  own->count++;
}

void collect_reports(const Launch& launch) {
  std::vector<uintptr_t> pcs;
  for (unsigned worker = 0; worker < kMostWorkers; worker++)
    for (unsigned i = 0; i < lists[worker].count; i++)
      for (const uintptr_t pc : {lists[worker].reports[i].pc, lists[worker].reports[i].other})
        if (pc) pcs.push_back(pc);
  resolve(pcs);
  for (unsigned worker = 0; worker < kMostWorkers; worker++) {
    for (unsigned i = 0; i < lists[worker].count; i++) {
      const Report& report = lists[worker].reports[i];
      Known known{report, launch.name, "", "", launch.grid};
      known.at = report.line ? std::string(report.file) + ":" + std::to_string(report.line)
                 : report.pc ? place(report.pc)
                             : "the end of the block";
      if (report.other) known.against = place(report.other);
      auto [entry, added] = found.try_emplace({report.kind, known.at, known.against}, known);
      if (!added)
        entry->second.report.count += report.count;
      else if (!options.quiet)
        std::fprintf(stderr, "musa checker: %s\n", sentence(known).c_str());
    }
  }
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" const char* musaSimReports(void) {
  std::lock_guard guard(big_lock);
  Json out;
  out.open('[');
  for (const auto& [key, known] : found) {
    const Report& report = known.report;
    out.open('{');
    out.field("kind", words(report));
    out.field("space", words(report.space));
    out.field("kernel", known.kernel);
    out.field("place", known.at);
    out.field("against", known.against);
    out.field("block", report.block);
    out.field("thread", report.thread);
    out.field("other_block", report.other_block);
    out.field("other_thread", report.other_thread);
    out.field("offset", report.offset);
    out.field("count", report.count);
    out.field("text", sentence(known));
    out.close('}');
  }
  out.close(']');
  json = out.text();
  return json.c_str();
}

namespace musa_sim {
void clear_counters();
}

extern "C" void musaSimClear(void) {
  std::lock_guard guard(big_lock);
  found.clear();
  clear_counters();
}
