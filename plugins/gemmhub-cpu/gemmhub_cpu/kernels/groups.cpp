// How groups are run: a group with more work than a thread's share of all is multiplied by all threads; the others are
// divided between the threads, the largest first, each on one thread in its own part of the workspace.
#include "groups.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "batch.h"
#include "mode.h"
#include "pool.h"
#include "sizes.h"
#include "unit.h"

namespace {

using namespace gemmhub;

struct Group {
  int64_t index;
  double work;  // multiplications
};

bool larger(const Group& x, const Group& y) { return x.work != y.work ? x.work > y.work : x.index < y.index; }

Call product_of(const Groups& groups, int64_t index) {
  const int64_t start = index ? groups.ends[index - 1] : 0;
  Call call = groups.call;
  call.*groups.size = groups.ends[index] - start;
  call.a.data += groups.a.step * (groups.a.divided ? start : index);
  call.b.data += groups.b.step * (groups.b.divided ? start : index);
  call.out.data += groups.out.step * (groups.out.divided ? start : index);
  return call;
}

// Bytes of workspace of the group that needs most, of those from `first` to `last`, on so many threads; 0 where the limit does
// not suffice for one.
int64_t most(const Groups& groups, const Group* first, const Group* last, int64_t threads, int64_t limit) {
  int64_t bytes = 0;
  for (; first < last; ++first) {
    Call call = product_of(groups, first->index);
    call.threads = threads;
    call.workspace_bytes = limit;
    const int64_t need = gemmhub_cpu_workspace(&call);
    if (!need) return 0;
    bytes = max(bytes, round_up(need, 64));
  }
  return bytes;
}

struct Work {
  const Groups* groups;
  const Group* first;
  char* memory;
  int64_t bytes;  // for each thread
  std::atomic<int64_t> failed{0};
};

int64_t run(const Groups& groups, int64_t index, int64_t threads, char* memory, int64_t bytes) {
  Call call = product_of(groups, index);
  call.threads = threads;
  call.workspace = reinterpret_cast<int64_t>(memory);
  call.workspace_bytes = bytes;
  return gemmhub_cpu_multiply(&call);
}

void task_of(void* context, int64_t task, int64_t thread) {
  Work& work = *static_cast<Work*>(context);
  if (run(*work.groups, work.first[task].index, 1, work.memory + thread * work.bytes, work.bytes)) work.failed = 1;
}

int64_t run_all(const Groups& groups, Group* list) {
  const double rate = worth_a_thread(*kUnits[groups.call.unit]);
  int64_t count = 0;
  double total = 0;
  for (int64_t i = 0; i < groups.count; ++i) {
    const Call call = product_of(groups, i);
    if (call.m <= 0 || call.n <= 0) continue;
    const double work = static_cast<double>(call.m) * call.n * call.k;
    list[count++] = {i, work};
    total += work;
  }
  std::sort(list, list + count, larger);
  const auto worth = [&](double work) { return allowed(min(groups.call.threads, static_cast<int64_t>(work / rate))); };
  const int64_t all = worth(total);
  const Group* light = list;
  double rest = total;
  for (; all > 1 && light < list + count && light->work * all > total; ++light) rest -= light->work;
  const int64_t limit = groups.call.workspace_bytes, threads = max(1, min(worth(rest), list + count - light));
  const int64_t heavy_bytes = most(groups, list, light, all, limit);
  const int64_t bytes = most(groups, light, list + count, 1, limit / threads);
  if ((light > list && !heavy_bytes) || (light < list + count && !bytes)) return 1;
  const int64_t need = max(heavy_bytes, bytes * threads);
  char* memory = need ? workspace_of(need + 64) : nullptr;
  if (count && !memory) return 1;
  memory += -reinterpret_cast<uintptr_t>(memory) % 64;
  Work work{&groups, light, memory, bytes};
  for (const Group* group = list; group < light; ++group)
    if (run(groups, group->index, all, memory, heavy_bytes)) return 1;
  share(task_of, &work, list + count - light, threads);
  return work.failed;
}

}  // namespace

int64_t gemmhub::multiply_groups(const Groups& groups) {
  const DefaultMode mode;
  auto* const list = static_cast<Group*>(std::malloc(max(1, groups.count) * sizeof(Group)));
  if (!list) return 1;
  const int64_t status = run_all(groups, list);
  std::free(list);
  return status;
}
