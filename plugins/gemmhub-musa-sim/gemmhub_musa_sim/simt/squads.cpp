#include "squads.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "block.hpp"
#include "checker.hpp"
#include "number_formats.hpp"
#include "options.hpp"
#include "shared_window.hpp"

namespace musa_sim {

namespace {

constexpr unsigned kSquad = 128;
constexpr size_t kUnit = 16;  // bytes that no swizzle parts
constexpr char kName[] = "SQMMA";

// A matrix in shared memory: `lines` of `run` bytes, each `pitch` after the one before, then swizzled.
struct Operand {
  uint32_t start = 0, pitch = 0;
  unsigned lines = 0, run = 0;
  bool deep = false;  // lines along K
  Swizzle swizzle;
  Format format = Format::kF16;

  char* at(unsigned line, unsigned byte) const {
    const unsigned unit = byte / kUnit * kUnit;
    return shared_address(swizzle(start + line * pitch + unit), kUnit, kName) + (byte - unit);
  }
};

struct Multiply {
  const void* pc;
  unsigned number;  // which of the squad's collectives
  unsigned group;   // by how many commits it comes after
  int m, n, k;
  bool whole;  // integers
  bool keep;   // C is added
  float sign;  // of A times B
  Operand a, b;
  std::shared_ptr<Multiply> before;    // whose result is C, if it is not there yet
  std::vector<uint32_t> c, d;          // row by row: bits of float, or integers
  uint32_t* to[kSquad] = {};           // the registers of each lane
  bool started = false, executed = false;
};
using MultiplyRef = std::shared_ptr<Multiply>;

struct Squad {
  std::vector<MultiplyRef> queue;               // not executed, in order
  std::vector<MultiplyRef> owed[kSquad];        // whose results a lane has not got
  std::map<unsigned, MultiplyRef> joining;      // by number: those that lanes are bringing their registers to
  unsigned committed[kSquad] = {};              // groups, by lane
};

std::vector<Squad> squads;

[[noreturn]] void fail(const std::string& text) {
  musaSimFault(musaErrorLaunchFailure, (std::string(kName) + ": " + text).c_str());
}

// The element of C that a lane holds as its value number `i`: mute/atom/mma_traits_mp31_sqmma.hpp, CLayout.
size_t place(unsigned lane, unsigned i, int n) {
  const unsigned pairs = static_cast<unsigned>(n) / 16;
  const unsigned column = lane % 8 + 8 * (i % 2) + 16 * (i / 2 % pairs);
  const unsigned row = lane / 8 % 4 + 4 * (lane / 32) + 16 * (i / 2 / pairs);
  return size_t{row} * static_cast<size_t>(n) + column;
}

bool is_one_of(int value, std::initializer_list<int> allowed) {
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

// The shapes that mute/arch/mma_mp31_sqmma.hpp lists.
bool has_shape(const MusaSimSquadShape& shape, Format format) {
  const unsigned bytes = size_of(format);
  const int unit = static_cast<int>(32 / bytes);
  if (!is_one_of(shape.k, {unit, 2 * unit, 4 * unit})) return false;
  if (format == Format::kTF32) {
    if (shape.m == 128) return is_one_of(shape.n, {128, 64});
    if (shape.m == 64) return is_one_of(shape.n, {64, 32, 16});
    if (shape.m == 32) return is_one_of(shape.n, {64, 32});
    return shape.m == 16 && shape.n == 64;
  }
  if (shape.m == 128) return is_one_of(shape.n, {128, 64, 32});
  if (shape.m == 64) return is_one_of(shape.n, {128, 64, 32, 16});
  if (shape.m == 32) return is_one_of(shape.n, {128, 64, 32});
  return shape.m == 16 && shape.n == 64;
}

// A descriptor's bits: 18 of the address, 3 of the pitch (1: 8 bytes ... 6: 256), 2 of the swizzle's granularity
// (mute/arch/mma_mp31_desc.hpp). A swizzle's stride and line are 256 bytes.
Operand operand(const char* which, uint32_t bits, int extent, int k, bool deep, Format format) {
  const std::string name = std::string("descriptor of ") + which + ": ";
  const unsigned bytes = size_of(format), pitch = bits >> 18 & 7, granularity = bits >> 21 & 3;
  Operand made;
  made.start = bits & (kSharedWindow - 1);
  made.deep = deep;
  made.format = format;
  made.lines = static_cast<unsigned>(deep ? extent : k);
  made.run = static_cast<unsigned>(deep ? k : extent) * bytes;
  if (bits >> 23) fail(name + "bits above the 23 that it has are set");
  if (pitch < 1 || pitch > 6) fail(name + "the leading stride must be 1 (8 bytes) to 6 (256 bytes)");
  made.pitch = 4u << pitch;
  // No public code runs these instructions without the swizzle for the storage order and size of elements.
  const unsigned usual = deep || bytes == 1 ? 1 : bytes == 2 ? 2 : 3;
  if (granularity != usual)
    fail(name + "the swizzle must have granularity " + std::to_string(8u << usual) + " bytes for this storage order");
  made.swizzle = {3 + granularity, 8, 8};
  if (made.start % kUnit) fail(name + "the address must be a multiple of 16 bytes");
  if (made.run > made.pitch) {
    fail(name + "lines of " + std::to_string(made.run) + " bytes are longer than the leading stride of " +
         std::to_string(made.pitch));
  }
  return made;
}

void touch(const Operand& operand, Access access, const void* pc) {
  for (unsigned line = 0; line < operand.lines; line++)
    for (unsigned byte = 0; byte < operand.run; byte += kUnit)
      checker_access(operand.at(line, byte), std::min<size_t>(kUnit, operand.run - byte), access, pc);
}

// The operand as float, with K along rows.
std::vector<float> values(const Operand& operand, int extent, int k) {
  std::vector<float> all(static_cast<size_t>(extent) * static_cast<size_t>(k));
  const unsigned bytes = size_of(operand.format);
  for (unsigned line = 0; line < operand.lines; line++)
    for (unsigned byte = 0; byte < operand.run; byte += bytes) {
      const unsigned other = byte / bytes, depth = operand.deep ? other : line, place = operand.deep ? line : other;
      all[size_t{depth} * static_cast<size_t>(extent) + place] = value_at(operand.at(line, byte), operand.format);
    }
  return all;
}

// Each sum of k products is exact to double, added to C, and rounded once: how a card rounds is not public.
void execute(Multiply& work) {
  block.acting_for = work.pc;
  const std::vector<float> a = values(work.a, work.m, work.k), b = values(work.b, work.n, work.k);
  block.acting_for = nullptr;
  const size_t m = static_cast<size_t>(work.m), n = static_cast<size_t>(work.n);
  const std::vector<uint32_t>& c = work.before ? work.before->d : work.c;
  work.d.resize(m * n);
  std::vector<double> sums(n);
  for (size_t i = 0; i < m; i++) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (size_t p = 0; p < static_cast<size_t>(work.k); p++) {
      const double left = work.sign * a[p * m + i];
      const float* right = &b[p * n];
      for (size_t j = 0; j < n; j++) sums[j] += left * right[j];
    }
    for (size_t j = 0; j < n; j++) {
      if (work.whole) {
        work.d[i * n + j] = (work.keep ? c[i * n + j] : 0u) + static_cast<uint32_t>(static_cast<int64_t>(sums[j]));
        continue;
      }
      float added = 0.0f;
      if (work.keep) std::memcpy(&added, &c[i * n + j], 4);
      const float sum = static_cast<float>(sums[j] + added);
      std::memcpy(&work.d[i * n + j], &sum, 4);
    }
  }
  work.executed = true;
  work.before.reset();
  for (const Operand* one : {&work.a, &work.b}) touch(*one, Access::kReadCompletes, work.pc);
}

unsigned squad_of(const Thread& thread) { return thread.linear / kSquad; }

// Those of the groups before `end`.
void execute(Squad& squad, unsigned end) {
  Thread* const waiting = block.current;
  block.act_as(&block.threads[squad_of(*waiting) * kSquad]);
  auto next = squad.queue.begin();
  for (; next != squad.queue.end() && (*next)->group < end; ++next) execute(**next);
  squad.queue.erase(squad.queue.begin(), next);
  block.act_as(waiting);
}

void take_results(Squad& squad, unsigned lane, unsigned end) {
  auto& owed = squad.owed[lane];
  auto next = owed.begin();
  for (; next != owed.end() && (*next)->group < end; ++next) {
    const Multiply& work = **next;
    for (unsigned i = 0; i < static_cast<unsigned>(work.m * work.n) / kSquad; i++)
      work.to[lane][i] = work.d[place(lane, i, work.n)];
  }
  owed.erase(owed.begin(), next);
}

constexpr unsigned kAllGroups = ~0u;

struct Types {
  Format a, b;
};

Types types_of(int number) {
  constexpr Types kTypes[] = {
      {Format::kU8, Format::kU8},     {Format::kS8, Format::kS8},     {Format::kF16, Format::kF16},
      {Format::kBF16, Format::kBF16}, {Format::kTF32, Format::kTF32}, {Format::kE4M3, Format::kE4M3},
      {Format::kE5M2, Format::kE5M2},
  };
  if (number == 0x0b) return {Format::kE4M3, Format::kE5M2};
  if (number == 0x0c) return {Format::kE5M2, Format::kE4M3};
  if (number < 0 || number > 6) fail("operands of type number " + std::to_string(number) + " are not simulated");
  return kTypes[number];
}

MultiplyRef multiply(const MusaSimSquadShape& shape, uint32_t a, uint32_t b, const void* pc) {
  const Types types = types_of(shape.type);
  const bool deep_a = shape.transposed_a == 0, deep_b = shape.transposed_b == 1;
  auto made = std::make_shared<Multiply>();
  made->pc = pc;
  made->m = shape.m;
  made->n = shape.n;
  made->k = shape.k;
  made->whole = types.a == Format::kU8 || types.a == Format::kS8;
  made->keep = shape.scale == 0;
  made->sign = shape.negative_a != shape.negative_b ? -1.0f : 1.0f;
  if (!has_shape(shape, types.a)) {
    fail(std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k) +
         " is no shape for this type of operands");
  }
  if (types.a == Format::kTF32 && shape.m == 128 && !(deep_a && deep_b))
    fail("TF32 with 128 rows takes operands contiguous along K only");
  if (shape.saturates) fail("saturation is not simulated");
  if (made->whole && made->sign < 0) fail("integers cannot be negated");
  made->a = operand("A", a, shape.m, shape.k, deep_a, types.a);
  made->b = operand("B", b, shape.n, shape.k, deep_b, types.b);
  return made;
}

}  // namespace

void squads_block_starts() {
  squads.clear();
  squads.resize((block.size + kSquad - 1) / kSquad);
}

bool squad_work_is_open() { return !squads[squad_of(*block.current)].owed[block.current->linear % kSquad].empty(); }

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

void musaSimSquadMultiply(const MusaSimSquadShape* shape, void* d, unsigned a, unsigned b, const void* c) {
  const void* pc = __builtin_return_address(0);
  Thread& me = *block.current;
  const unsigned lane = me.linear % kSquad;
  char name[80];
  std::snprintf(name, sizeof name, "SQMMA %dx%dx%d of type %d", shape->m, shape->n, shape->k, shape->type);
  const long flags = shape->transposed_a | shape->transposed_b << 1 | shape->negative_a << 2 | shape->negative_b << 3 |
                     shape->scale << 4 | shape->saturates << 5 |
                     static_cast<long>(squads[squad_of(me)].committed[lane]) << 8;
  static std::map<std::string, std::string> names;  // the collective keeps the pointer
  const char* kept = names.try_emplace(name, name).first->second.c_str();
  musaSimJoin(kSquad, kept, reinterpret_cast<const void*>(uintptr_t{a} << 32 | b), flags);

  Squad& squad = squads[squad_of(me)];
  MultiplyRef& joined = squad.joining[me.collectives];
  if (!joined) {
    joined = multiply(*shape, a, b, pc);
    joined->group = squad.committed[lane];
  }
  const MultiplyRef work = joined;
  // C is what the lane has in registers, or will have when an earlier multiplication is done.
  work->to[lane] = static_cast<uint32_t*>(d);
  work->c.resize(static_cast<size_t>(work->m * work->n));
  for (const MultiplyRef& earlier : squad.owed[lane])
    if (earlier->to[lane] == c) work->before = earlier;
  const unsigned each = static_cast<unsigned>(work->m * work->n) / kSquad;
  for (unsigned i = 0; i < each; i++) work->c[place(lane, i, work->n)] = static_cast<const uint32_t*>(c)[i];
  musaSimMeet(kSquad);

  if (!work->started) {
    work->started = true;
    squad.joining.erase(work->number = me.collectives - 1);
    squad.queue.push_back(work);
    for (const Operand* one : {&work->a, &work->b}) touch(*one, Access::kReadStarts, pc);
  }
  squad.owed[lane].push_back(work);
  if (options.async == 0) {
    execute(squad, kAllGroups);
    take_results(squad, lane, kAllGroups);
  } else if (options.poison) {
    std::memset(d, 0xff, each * sizeof(uint32_t));
  }
}

void musaSimSquadWait(void) {
  Squad& squad = squads[squad_of(*block.current)];
  execute(squad, kAllGroups);
  take_results(squad, block.current->linear % kSquad, kAllGroups);
}

void musaSimSquadCommit(void) { squads[squad_of(*block.current)].committed[block.current->linear % kSquad]++; }

void musaSimSquadWaitFor(unsigned pending) {
  Squad& squad = squads[squad_of(*block.current)];
  const unsigned lane = block.current->linear % kSquad, committed = squad.committed[lane];
  const unsigned end = committed - std::min(committed, pending);
  execute(squad, end);
  take_results(squad, lane, end);
}

}  // extern "C"
