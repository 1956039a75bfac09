// How a batch is run: products that share b become rows of one product where their strides allow it; else b is packed once
// for all of them. Small products, and many, are divided between the threads, each product on one thread in its own part of
// the workspace; few large ones follow one another, each on all threads.
#include "batch.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>

#include "mode.h"
#include "pool.h"
#include "sizes.h"
#include "unit.h"

namespace {

using namespace gemmhub;

struct Kept {
  int64_t bytes;
  char* memory;
};

pthread_key_t key;
pthread_once_t once = PTHREAD_ONCE_INIT;
bool has_key = false;

void release(void* kept) {
  std::free(static_cast<Kept*>(kept)->memory);
  std::free(kept);
}

void make_key() { has_key = pthread_key_create(&key, release) == 0; }

int64_t products_of(const Batch& batch) {
  int64_t count = 1;
  for (int i = 0; i < batch.count; ++i) count *= batch.axes[i].size;
  return count;
}

Call product_at(const Batch& batch, int64_t index) {
  Call call = batch.call;
  for (int i = batch.count; i--;) {
    const Axis& axis = batch.axes[i];
    const int64_t at = index % axis.size;
    index /= axis.size;
    call.a.data += at * axis.a;
    call.out.data += at * axis.out;
    if (!call.packed) call.b.data += at * axis.b;
    if (call.c.data) call.c.data += at * axis.c;
    call.scale_a.data += at * axis.scale_a;  // which is 0 without a scale
    call.scale_b.data += at * axis.scale_b;
  }
  return call;
}

void erase(Batch* batch, int axis) {
  --batch->count;
  for (int i = axis; i < batch->count; ++i) batch->axes[i] = batch->axes[i + 1];
}

// Whether the rows of the next product follow those of one, of a Matrix or a Strip.
template <class Rows>
bool follows(const Rows& x, int64_t stride, int64_t rows) {
  return rows == 1 || stride == rows * x.row_stride;
}

// Makes rows of the products along each axis that b does not have, where they follow one another in memory.
void fold(Batch* batch) {
  Call& call = batch->call;
  for (int i = batch->count; batch->folds && i--;) {
    const Axis axis = batch->axes[i];
    if ((!call.packed && axis.b) || axis.scale_b) continue;
    if (!follows(call.a, axis.a, call.m) || !follows(call.out, axis.out, call.m)) continue;
    if (call.c.data && !follows(call.c, axis.c, call.m)) continue;
    if (!follows(call.scale_a, axis.scale_a, call.m)) continue;
    if (call.m == 1) {
      call.a.row_stride = axis.a, call.out.row_stride = axis.out, call.c.row_stride = axis.c;
      call.scale_a.row_stride = axis.scale_a;
    }
    call.m *= axis.size;
    erase(batch, i);
    i = batch->count;  // an axis that did not follow may do so now
  }
}

// The axes that b has, or those that it does not have.
Batch along(const Batch& batch, bool with_b) {
  Batch part = batch;
  for (int i = part.count; i--;)
    if ((part.axes[i].b != 0) != with_b) erase(&part, i);
  return part;
}

int64_t need(Call call, int64_t threads, int64_t bytes) {
  call.threads = threads;
  call.workspace_bytes = bytes;
  return round_up(gemmhub_cpu_workspace(&call), 64);
}

struct Plan {
  bool packs = false;   // b once for all products that share it
  int64_t packed = 0;   // bytes of b packed
  int64_t tasks = 1;    // products, or groups that share b, each of which one thread takes; 1: all threads take part in each
  int64_t threads = 1;  // that take tasks
  int64_t bytes = 0;    // of workspace for each of them; 0 where there is too little
};

// Whether `tasks` of `count` products shall be divided between threads, and in how much workspace each.
bool divide(const Call& call, int64_t tasks, int64_t count, Plan* plan) {
  const double rate = worth_a_thread(*kUnits[call.unit]);
  const double all = static_cast<double>(call.m) * call.n * call.k * count;
  const int64_t threads = allowed(min(min(call.threads, tasks), static_cast<int64_t>(all / rate)));
  if (tasks < 2 * threads && all / tasks > rate) return false;
  const int64_t share = call.workspace_bytes / threads - plan->packed, bytes = share > 0 ? need(call, 1, share) : 0;
  if (!bytes) return false;
  plan->tasks = tasks;
  plan->threads = threads;
  plan->bytes = plan->packed + bytes;
  return true;
}

Plan planned(const Batch& batch) {
  Plan plan;
  const Call& call = batch.call;
  const int64_t count = products_of(batch);
  if (count > 1 && !call.packed && call.m > 1 && call.n > 1) {  // a vector's product mostly reads b as it lies
    const int64_t groups = products_of(along(batch, true)), packed = round_up(gemmhub_cpu_packed_bytes(&call), 64);
    if (groups < count && packed <= call.workspace_bytes / 2) {
      Batch inner = along(batch, false);
      inner.call.packed = 1;  // none is read here
      plan.packs = true;
      plan.packed = packed;
      if (groups > 1 && divide(inner.call, groups, count, &plan)) return plan;
      inner.call.workspace_bytes -= packed;
      const Plan rest = planned(inner);
      plan.bytes = packed + rest.threads * rest.bytes;
      if (rest.bytes) return plan;
      plan = Plan();
    }
  }
  if (count < 2 || !divide(call, count, count, &plan)) plan.bytes = need(call, call.threads, call.workspace_bytes);
  return plan;
}

struct Work {
  const Batch* batch;
  const Batch* groups;
  const Plan* plan;
  char* memory;
  std::atomic<int64_t> failed{0};  // where workspace is missing
};

int64_t run(const Batch& batch, const Plan& plan, char* memory, int64_t bytes);

// Products that share b, which is packed into `memory`, of `bytes`, first.
int64_t run_group(const Work& work, int64_t index, int64_t threads, char* memory, int64_t bytes) {
  Batch inner = along(*work.batch, false);
  inner.call = product_at(*work.groups, index);
  inner.call.threads = threads;
  inner.call.packed = reinterpret_cast<int64_t>(memory);
  gemmhub_cpu_pack(&inner.call);
  inner.call.workspace_bytes = bytes - work.plan->packed;
  return run(inner, planned(inner), memory + work.plan->packed, inner.call.workspace_bytes);
}

int64_t run_product(const Batch& batch, int64_t index, int64_t threads, char* memory, int64_t bytes) {
  Call call = product_at(batch, index);
  call.threads = threads;
  call.workspace = reinterpret_cast<int64_t>(memory);
  call.workspace_bytes = bytes;
  return gemmhub_cpu_multiply(&call);
}

void task_of(void* context, int64_t task, int64_t thread) {
  Work& work = *static_cast<Work*>(context);
  const int64_t bytes = work.plan->bytes;
  char* const memory = work.memory + thread * bytes;
  if (work.plan->packs ? run_group(work, task, 1, memory, bytes) : run_product(*work.batch, task, 1, memory, bytes))
    work.failed = 1;
}

int64_t run(const Batch& batch, const Plan& plan, char* memory, int64_t bytes) {
  if (!batch.count) return run_product(batch, 0, batch.call.threads, memory, bytes);
  const Batch groups = along(batch, true);
  Work work{&batch, &groups, &plan, memory};
  const int64_t threads = batch.call.threads, count = products_of(plan.packs ? groups : batch);
  if (plan.tasks > 1) share(task_of, &work, plan.tasks, plan.threads);
  for (int64_t i = 0; plan.tasks == 1 && i < count; ++i)
    if (plan.packs ? run_group(work, i, threads, memory, bytes) : run_product(batch, i, threads, memory, bytes)) return 1;
  return work.failed;
}

}  // namespace

char* gemmhub::workspace_of(int64_t bytes) {
  pthread_once(&once, make_key);
  if (!has_key) return nullptr;
  auto* kept = static_cast<Kept*>(pthread_getspecific(key));
  if (!kept) {
    kept = static_cast<Kept*>(std::calloc(1, sizeof(Kept)));
    if (!kept || pthread_setspecific(key, kept)) return std::free(kept), nullptr;
  }
  if (kept->bytes < bytes) {
    std::free(kept->memory);
    kept->memory = static_cast<char*>(std::malloc(bytes));
    kept->bytes = kept->memory ? bytes : 0;
  }
  return kept->memory;
}

int64_t gemmhub::multiply_batch(Batch* batch) {
  const DefaultMode mode;
  fold(batch);
  const Plan plan = planned(*batch);
  const int64_t bytes = plan.threads * plan.bytes;
  char* memory = bytes ? workspace_of(bytes + 64) : nullptr;
  if (!memory) return 1;
  return run(*batch, plan, memory + -reinterpret_cast<uintptr_t>(memory) % 64, bytes);
}
