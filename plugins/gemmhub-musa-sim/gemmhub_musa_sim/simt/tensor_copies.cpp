#include "tensor_copies.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "barriers.hpp"
#include "checker.hpp"
#include "device.hpp"
#include "issue.hpp"
#include "options.hpp"
#include "shared_window.hpp"
#include "tensor.hpp"

namespace musa_sim {

namespace {

constexpr size_t kUnit = 16;  // bytes that no swizzle parts

enum Arrival { kAtOnce = 0, kWhenWaitedFor = 1, kAtRandom = 2 };

// One copy of a box: a run of 16 bytes in shared memory, and the elements there.
struct Run {
  char* shared;
  int64_t place[kTensorRank];  // of its first element in the tensor
};

struct BoxCopy {
  const void* pc;
  Tensor tensor;
  std::vector<Run> runs;
  size_t bytes = 0;
  // Into shared memory:
  unsigned barrier = 0;
  Moment moment;  // what precedes it
  // From shared memory:
  unsigned warp = 0;
  bool committed = false;
  Thread* thread = nullptr;
};

std::vector<BoxCopy> loads, stores;  // on their way

[[noreturn]] void fail(const char* name, const std::string& text) {
  musaSimFault(musaErrorLaunchFailure, (std::string(name) + ": " + text).c_str());
}

Swizzle swizzle(const char* name, const MusaSimBox& box) {
  constexpr unsigned kStride[] = {5, 6, 7, 8}, kLine[] = {7, 8};
  if (box.granularity < 0 || box.granularity > 3 || box.stride < 0 || box.stride > 3 || box.line < 0 || box.line > 1)
    fail(name, "no such swizzle");
  if (box.granularity == 0) return {};
  const Swizzle made{3u + static_cast<unsigned>(box.granularity), kStride[box.stride], kLine[box.line]};
  if (made.base >= made.stride || made.stride > made.line)
    fail(name, "a swizzle's granularity must be below its stride, and that at most its line");
  return made;
}

BoxCopy box_copy(const char* name, const MusaSimBox& box, const void* pc) {
  BoxCopy copy{};
  copy.pc = pc;
  copy.thread = block.current;
  std::memcpy(&copy.tensor, box.descriptor, sizeof copy.tensor);
  const Tensor& tensor = copy.tensor;
  if (tensor.magic != Tensor::kMagic) fail(name, "the descriptor was not made by muTensorDescriptorEncode");
  if (tensor.rank != box.rank)
    fail(name, "the descriptor's tensor has " + std::to_string(tensor.rank) + " dimensions");
  size_t rows = 1;
  for (unsigned i = 0; i < box.rank; i++) {
    if (box.size[i] < 1) fail(name, "a box has at least 1 element along each dimension");
    if (i) rows *= static_cast<size_t>(box.size[i]);
  }
  const size_t inner = static_cast<size_t>(box.size[0]) * tensor.element;
  if (inner % kUnit) fail(name, "rows of a box must be multiples of 16 bytes");
  const Swizzle swizzled = swizzle(name, box);
  const uint32_t start = shared_number(box.shared, name);
  const size_t aligned = swizzled.base == swizzled.stride ? kUnit : size_t{1} << swizzled.line;
  if (start % aligned) fail(name, "a box must start at a multiple of " + std::to_string(aligned) + " bytes");
  copy.bytes = rows * inner;
  shared_address(start, copy.bytes, name);
  copy.runs.reserve(copy.bytes / kUnit);
  for (size_t row = 0; row < rows; row++) {
    Run run{};
    size_t rest = row;
    for (unsigned i = 1; i < box.rank; i++) {
      run.place[i] = box.at[i] + static_cast<int64_t>(rest % static_cast<size_t>(box.size[i]));
      rest /= static_cast<size_t>(box.size[i]);
    }
    for (size_t at = 0; at < inner; at += kUnit) {
      run.place[0] = box.at[0] + static_cast<int64_t>(at / tensor.element);
      run.shared = shared_address(swizzled(start + static_cast<uint32_t>(row * inner + at)), kUnit, name);
      copy.runs.push_back(run);
    }
  }
  return copy;
}

// Calls visit(shared, global, bytes) for the part of each run that is in the tensor, and outside(shared, elements) for
// the elements that are not.
template <class Visit, class Outside>
void visit_runs(const BoxCopy& copy, Visit visit, Outside outside) {
  const Tensor& tensor = copy.tensor;
  const int64_t each = static_cast<int64_t>(kUnit / tensor.element);
  for (const Run& run : copy.runs) {
    bool inside = true;
    uint64_t address = tensor.address;
    for (unsigned i = 1; i < tensor.rank; i++) {
      inside = inside && run.place[i] >= 0 && static_cast<uint64_t>(run.place[i]) < tensor.size[i];
      address += static_cast<uint64_t>(run.place[i]) * tensor.step[i];
    }
    const int64_t size = static_cast<int64_t>(tensor.size[0]);
    const int64_t first = inside ? std::min(std::max<int64_t>(-run.place[0], 0), each) : each;
    const int64_t end = inside ? std::max(first, std::min(size - run.place[0], each)) : each;
    const auto at = [&](int64_t element) { return run.shared + static_cast<size_t>(element) * tensor.element; };
    if (first > 0) outside(at(0), first);
    if (end > first)
      visit(at(first), reinterpret_cast<char*>(address + static_cast<uint64_t>(run.place[0] + first) * tensor.element),
            static_cast<size_t>(end - first) * tensor.element);
    if (end < each) outside(at(end), each - end);
  }
}

void arrive(const BoxCopy& copy) {
  Thread* const waiting = block.current;
  block.act_as(copy.thread);
  block.acting_for = copy.pc;
  visit_runs(
      copy, [](char* shared, const char* global, size_t bytes) { std::memcpy(shared, global, bytes); },
      [&](char* shared, int64_t elements) {
        for (int64_t i = 0; i < elements; i++)
          std::memcpy(shared + static_cast<size_t>(i) * copy.tensor.element, &copy.tensor.fill, copy.tensor.element);
      });
  block.acting_for = nullptr;
  for (const Run& run : copy.runs) checker_access(run.shared, kUnit, Access::kArrives, copy.pc);
  block.act_as(waiting);
  bytes_arrive(copy.barrier, copy.bytes, copy.moment);
}

void read_out(const BoxCopy& copy) {
  Thread* const waiting = block.current;
  block.act_as(copy.thread);
  block.acting_for = copy.pc;
  visit_runs(
      copy, [](const char* shared, char* global, size_t bytes) { std::memcpy(global, shared, bytes); },
      [](char*, int64_t) {});
  block.acting_for = nullptr;
  for (const Run& run : copy.runs) checker_access(run.shared, kUnit, Access::kReadCompletes, copy.pc);
  block.act_as(waiting);
}

unsigned own_warp() { return block.current->linear / static_cast<unsigned>(description().warp); }

bool at_once() { return options.async == kAtOnce || (options.async == kAtRandom && (block.random() & 1)); }

std::vector<uint64_t> operands(const MusaSimBox& box) {
  std::vector<uint64_t> all = {reinterpret_cast<uintptr_t>(box.shared)};
  for (unsigned i = 0; i < box.rank; i++) all.push_back(static_cast<uint64_t>(box.at[i]));
  return all;
}

}  // namespace

void tensor_copies_block_starts() {
  loads.clear();
  stores.clear();
}

void tensor_copies_block_ends() {
  if (!loads.empty()) fail("__musa_tme_ld_tile", "the block ended while a copy into its shared memory was on its way");
  for (const BoxCopy& copy : stores) {
    checker_unfinished(copy.pc, "the block ended without __musa_tme_store_read_wait: its shared memory was being read");
    read_out(copy);
  }
  stores.clear();
}

bool copy_arrives() {
  if (loads.empty() || !block.running) return false;
  const size_t index = options.seed ? block.random() % loads.size() : 0;
  const BoxCopy copy = std::move(loads[index]);
  loads.erase(loads.begin() + static_cast<std::ptrdiff_t>(index));
  arrive(copy);
  return true;
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

void musaSimBoxLoad(const MusaSimBox* box, unsigned barrier) {
  const void* pc = __builtin_return_address(0);
  issue({"__musa_tme_ld_tile", pc, operands(*box)}, [=](const std::vector<Thread*>&) -> uint64_t {
    require_barrier(barrier);
    BoxCopy copy = box_copy("__musa_tme_ld_tile", *box, pc);
    copy.barrier = barrier;
    visit_runs(
        copy, [&](char*, char* global, size_t bytes) { checker_access(global, bytes, Access::kRead, pc); },
        [](char*, int64_t) {});
    for (const Run& run : copy.runs) checker_access(run.shared, kUnit, Access::kCopyStarts, pc);
    release(*block.current, copy.moment);
    if (at_once()) {
      arrive(copy);
      return 0;
    }
    if (options.poison)
      for (const Run& run : copy.runs) std::memset(run.shared, 0xff, kUnit);
    loads.push_back(std::move(copy));
    return 0;
  });
}

void musaSimBoxStore(const MusaSimBox* box) {
  const void* pc = __builtin_return_address(0);
  issue({"__musa_tme_st", pc, operands(*box)}, [=](const std::vector<Thread*>&) -> uint64_t {
    BoxCopy copy = box_copy("__musa_tme_st", *box, pc);
    copy.warp = own_warp();
    order_begins();
    for (const Run& run : copy.runs) checker_access(run.shared, kUnit, Access::kReadStarts, pc);
    visit_runs(
        copy, [&](char*, char* global, size_t bytes) { checker_access(global, bytes, Access::kWrite, pc); },
        [](char*, int64_t) {});
    if (at_once()) {
      read_out(copy);
      return 0;
    }
    stores.push_back(std::move(copy));
    return 0;
  });
}

void musaSimBoxCommit(void) {
  const void* pc = __builtin_return_address(0);
  issue({"__musa_tme_store_commit", pc, {}}, [](const std::vector<Thread*>&) -> uint64_t {
    for (BoxCopy& copy : stores)
      if (copy.warp == own_warp()) copy.committed = true;
    return 0;
  });
}

void musaSimBoxWait(void) {
  const void* pc = __builtin_return_address(0);
  issue({"__musa_tme_store_read_wait", pc, {}}, [](const std::vector<Thread*>& lanes) -> uint64_t {
    const unsigned warp = own_warp();
    for (const BoxCopy& copy : stores) {
      if (copy.warp != warp || !copy.committed) continue;
      read_out(copy);
      Moment moment;
      release(*copy.thread, moment);
      for (const Thread* lane : lanes) acquire(*lane, moment);
    }
    stores.erase(std::remove_if(stores.begin(), stores.end(),
                                [=](const BoxCopy& copy) { return copy.warp == warp && copy.committed; }),
                 stores.end());
    return 0;
  });
}

}  // extern "C"
