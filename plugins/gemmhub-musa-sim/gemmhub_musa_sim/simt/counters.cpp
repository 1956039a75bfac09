#include "counters.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <unordered_map>
#include <vector>

#include "block.hpp"
#include "device.hpp"
#include "fault.hpp"
#include "json.hpp"
#include "launching.hpp"
#include "memory_map.hpp"
#include "musa_sim.h"
#include "places.hpp"
#include "state.hpp"

namespace musa_sim {

namespace {

constexpr size_t kLine = 128;      // bytes that one transaction with global memory moves
constexpr unsigned kBanks = 32;    // of shared memory: not published, taken to be as many as elsewhere
constexpr unsigned kMostSites = 256;

// One instruction of the kernel, counted over all warps that executed it.
struct Site {
  uintptr_t pc;
  bool shared, write;
  uint64_t requests;       // by a warp
  uint64_t lane_bytes;     // that its lanes asked for
  uint64_t distinct;       // bytes, each counted once in a request
  uint64_t transactions;   // global: lines of 128 bytes
  uint64_t ideal;          // fewest that could hold the distinct bytes
  uint64_t wavefronts[2];  // shared: turns that banks of 4 and of 8 bytes need
  uint64_t ideal_wavefronts[2];
};

struct Totals {
  uint64_t blocks, barriers, copies, copied_bytes;
  unsigned sites;
  Site site[kMostSites];
};

struct Kernel {
  uint64_t launches = 0, threads = 0, read_bytes = 0, written_bytes = 0;
  int bank_bytes = 4;
  Totals totals{};
  std::map<uintptr_t, std::string> places;
};

Totals* workers = nullptr;  // shared, one for each
Totals* own = nullptr;
std::map<std::string, Kernel> kernels;  // since the last clear, by name
std::string json;

// Which bytes of global memory a launch touches at all: two planes, shared.
uint8_t* planes = nullptr;
size_t plane_bytes = 0;

// Accesses since the last barrier. The n-th time that a lane executes an instruction belongs to the n-th time of the
// other lanes of its warp: together they are one request.
struct Pending {
  bool shared, write;
  std::vector<unsigned> executed;  // for each lane of the warp
  std::vector<uint64_t> rows;      // address and, in the low 8 bits, size; row by row, one entry for each lane
};
std::unordered_map<uint64_t, Pending> pending;  // by instruction and warp

void* shared_pages(size_t bytes) {
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  return mapping;
}

Site* find_site(Totals& totals, uintptr_t pc, bool shared, bool write) {
  for (unsigned i = 0; i < totals.sites; i++)
    if (totals.site[i].pc == pc) return &totals.site[i];
  if (totals.sites == kMostSites) return nullptr;
  Site& made = totals.site[totals.sites++];
  made = Site{};
  made.pc = pc;
  made.shared = shared;
  made.write = write;
  return &made;
}

// The distinct words of `size` bytes that a request touches, sorted.
void words_of(const uint64_t* row, unsigned lanes, size_t size, std::vector<uint64_t>& words) {
  words.clear();
  for (unsigned lane = 0; lane < lanes; lane++) {
    if (!row[lane]) continue;
    const uint64_t start = row[lane] >> 8, end = start + (row[lane] & 0xff);
    for (uint64_t word = start / size; word * size < end; word++) words.push_back(word);
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
}

void count_request(Site& site, const uint64_t* row, unsigned lanes) {
  static std::vector<uint64_t> words;
  site.requests++;
  for (unsigned lane = 0; lane < lanes; lane++) site.lane_bytes += row[lane] & 0xff;
  words_of(row, lanes, 1, words);
  const size_t distinct = words.size();
  site.distinct += distinct;
  if (!site.shared) {
    words_of(row, lanes, kLine, words);
    site.transactions += words.size();
    site.ideal += (distinct + kLine - 1) / kLine;
    return;
  }
  for (const int wide : {0, 1}) {
    words_of(row, lanes, wide ? 8 : 4, words);
    unsigned in_bank[kBanks] = {};
    unsigned most = 0;
    for (const uint64_t word : words) most = std::max(most, ++in_bank[word % kBanks]);
    site.wavefronts[wide] += most;
    site.ideal_wavefronts[wide] += (words.size() + kBanks - 1) / kBanks;
  }
}

void flush() {
  const unsigned lanes = static_cast<unsigned>(description().warp);
  for (auto& [key, one] : pending) {
    Site* site = find_site(*own, key >> 16, one.shared, one.write);
    if (site)
      for (size_t at = 0; at < one.rows.size(); at += lanes) count_request(*site, &one.rows[at], lanes);
    one.rows.clear();
    std::fill(one.executed.begin(), one.executed.end(), 0u);
  }
}

void add(Totals& to, const Totals& from) {
  to.blocks += from.blocks;
  to.barriers += from.barriers;
  to.copies += from.copies;
  to.copied_bytes += from.copied_bytes;
  for (unsigned i = 0; i < from.sites; i++) {
    const Site& one = from.site[i];
    Site* sum = find_site(to, one.pc, one.shared, one.write);
    if (!sum) continue;
    sum->requests += one.requests;
    sum->lane_bytes += one.lane_bytes;
    sum->distinct += one.distinct;
    sum->transactions += one.transactions;
    sum->ideal += one.ideal;
    for (const int wide : {0, 1}) {
      sum->wavefronts[wide] += one.wavefronts[wide];
      sum->ideal_wavefronts[wide] += one.ideal_wavefronts[wide];
    }
  }
}

void write_site(Json& out, const Site& site, const std::string& place) {
  out.open('{');
  out.field("place", place);
  out.field("space", site.shared ? "shared" : "global");
  out.field("operation", site.write ? "write" : "read");
  out.field("requests", site.requests);
  out.field("lane_bytes", site.lane_bytes);
  out.field("distinct_bytes", site.distinct);
  if (site.shared) {
    out.field("wavefronts_4", site.wavefronts[0]);
    out.field("ideal_wavefronts_4", site.ideal_wavefronts[0]);
    out.field("wavefronts_8", site.wavefronts[1]);
    out.field("ideal_wavefronts_8", site.ideal_wavefronts[1]);
  } else {
    out.field("transactions", site.transactions);
    out.field("ideal_transactions", site.ideal);
  }
  out.close('}');
}

}  // namespace

void begin_counters(const Launch&) {
  if (!workers) workers = static_cast<Totals*>(shared_pages(sizeof(Totals) * kMostWorkers));
  std::memset(static_cast<void*>(workers), 0, sizeof(Totals) * kMostWorkers);
  own = &workers[0];
  if (planes) munmap(planes, 2 * plane_bytes);
  plane_bytes = global_bytes() + 1;
  planes = static_cast<uint8_t*>(shared_pages(2 * plane_bytes));
  pending.clear();
}

void set_counter_worker(unsigned worker) { own = &workers[worker]; }

void count_access(uintptr_t p, size_t bytes, bool write, uintptr_t pc) {
  const Range* range = nullptr;
  const Region region = locate(p, &range);
  if (!range) return;
  if (region == Region::kGlobal)
    std::memset(planes + (write ? plane_bytes : 0) + range->shadow + (p - range->start), 1,
                std::min<size_t>(bytes, range->end - p));
  const unsigned lanes = static_cast<unsigned>(description().warp);
  const unsigned lane = block.current->linear % lanes, warp = block.current->linear / lanes;
  // Addresses of code and warps of a block both fit: 48 bits and 16.
  Pending& one = pending[static_cast<uint64_t>(pc) << 16 | warp];
  if (one.executed.empty()) {
    one.shared = region == Region::kShared;
    one.write = write;
    one.executed.resize(lanes);
  }
  const size_t at = size_t{one.executed[lane]++} * lanes + lane;
  if (one.rows.size() <= at) one.rows.resize((at / lanes + 1) * lanes);
  one.rows[at] = static_cast<uint64_t>(p) << 8 | std::min<size_t>(bytes, 255);
}

void count_copy(size_t bytes) {
  own->copies++;
  own->copied_bytes += bytes;
}

void count_barrier() {
  own->barriers++;
  flush();
}

void count_block_end() {
  own->blocks++;
  flush();
}

void collect_counters(const Launch& launch) {
  Kernel& kernel = kernels[launch.name];
  for (unsigned i = 0; i < kMostWorkers; i++) add(kernel.totals, workers[i]);
  kernel.launches++;
  const dim3 grid = launch.grid, block_size = launch.block;
  kernel.threads += uint64_t{grid.x} * grid.y * grid.z * block_size.x * block_size.y * block_size.z;
  kernel.bank_bytes = bank_bytes(launch.kernel.function);
  for (size_t i = 0; i < plane_bytes; i++) {
    kernel.read_bytes += planes[i];
    kernel.written_bytes += planes[plane_bytes + i];
  }
  std::vector<uintptr_t> pcs;
  for (unsigned i = 0; i < kernel.totals.sites; i++) pcs.push_back(kernel.totals.site[i].pc);
  resolve(pcs);
  for (const uintptr_t pc : pcs) kernel.places[pc] = place(pc);
}

void clear_counters() { kernels.clear(); }

}  // namespace musa_sim

using namespace musa_sim;

extern "C" const char* musaSimCounters(void) {
  std::lock_guard guard(big_lock);
  Json out;
  out.open('[');
  for (auto& [name, kernel] : kernels) {
    out.open('{');
    out.field("kernel", name);
    out.field("launches", kernel.launches);
    out.field("blocks", kernel.totals.blocks);
    out.field("threads", kernel.threads);
    out.field("barriers", kernel.totals.barriers);
    out.field("async_copies", kernel.totals.copies);
    out.field("async_bytes", kernel.totals.copied_bytes);
    out.field("bank_bytes", kernel.bank_bytes);
    out.field("minimum_read_bytes", kernel.read_bytes);
    out.field("minimum_written_bytes", kernel.written_bytes);
    out.open("sites", '[');
    for (unsigned i = 0; i < kernel.totals.sites; i++)
      write_site(out, kernel.totals.site[i], kernel.places[kernel.totals.site[i].pc]);
    out.close(']');
    out.close('}');
  }
  out.close(']');
  json = out.text();
  return json.c_str();
}
