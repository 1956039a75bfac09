// The functions that take NumPy's arrays themselves, so that Python reads none of their attributes. An array object begins,
// behind Python's head, with the fields below: NumPy's own headers have them in every extension module.
#include "batch.h"
#include "groups.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "mode.h"
#include "unit.h"

namespace {

using namespace gemmhub;

struct Array {
  int64_t data;
  int32_t count;  // of dimensions
  const int64_t *sizes, *strides;
  const void *base, *dtype;
  int32_t flags;
};

constexpr int32_t kWriteable = 0x400;

enum Status : int64_t { kDone, kNoWorkspace, kUnlike, kShared };

// What a kernel was prepared for; native_engine.py has the same.
struct Prepared {
  int64_t head;       // bytes of Python's head of an object
  int64_t unit, workspace_bytes;
  const void* dtypes[3];       // NumPy's, of a, b and out
  const void* none;            // Python's None: an operand that a call does not have
  int64_t a, b, out, c, bias;  // those of unit.h
  int64_t bias_rows, activation, folds, pinned, symmetric;
};

const Array& array(const Prepared& p, const void* object) {
  return *reinterpret_cast<const Array*>(static_cast<const char*>(object) + p.head);
}

const Array* array_or_null(const Prepared& p, const void* object) { return object == p.none ? nullptr : &array(p, object); }

// The size of a batch dimension, the `axis`th of `count`, of an array with `own` batch dimensions, which end where all do.
int64_t size_of(const Array& x, int own, int count, int axis) {
  const int at = axis - (count - own);
  return at < 0 ? 1 : x.sizes[at];
}

int64_t stride_of(const Array& x, int own, int count, int axis) {
  const int at = axis - (count - own);
  return at < 0 || x.sizes[at] == 1 ? 0 : x.strides[at];
}

struct Range {
  int64_t begin, end;
};

Range range_of(const Array& x, int64_t dtype) {
  Range range = {x.data, x.data + gemmhub::size_of(dtype)};
  for (int i = 0; i < x.count; ++i) {
    if (!x.sizes[i]) return {x.data, x.data};
    const int64_t reach = (x.sizes[i] - 1) * x.strides[i];
    (reach < 0 ? range.begin : range.end) += reach;
  }
  return range;
}

bool meet(Range x, Range y) { return x.begin < y.end && y.begin < x.end; }

// Whether `c` is the result itself, each of whose elements is read before it is written.
bool in_place(const Prepared& p, const Array& c, const Array& out) {
  if (c.data != out.data || p.c != p.out || c.count != out.count) return false;
  for (int i = 0; i < c.count; ++i)
    if (c.sizes[i] != out.sizes[i] || (c.sizes[i] > 1 && (c.strides[i] != out.strides[i] || !c.strides[i]))) return false;
  return true;
}

// The stride of `c` along an axis of the result, to which it broadcasts.
bool stride_of_c(const Array* c, const Array& out, int axis, int64_t* stride) {
  *stride = 0;
  const int at = c ? axis - (out.count - c->count) : -1;
  if (at < 0 || c->sizes[at] == 1) return true;
  *stride = c->strides[at];
  return c->sizes[at] == out.sizes[axis];
}

// Reads scales of a (`rows`) or of b into the call and the axes: one for all, or one for each of `size` rows or columns, as a
// vector or as a matrix whose batch dimensions broadcast to the `count` of the result.
Status read_scales(const Array& x, bool rows, const Array& out, int count, Batch* batch) {
  Call& call = batch->call;
  const int inner = x.count < 2 ? x.count : 2, outer = x.count - inner;
  const int along = inner < 2 || rows ? outer : outer + 1;  // the dimension of the rows or columns
  if (inner == 2 && x.sizes[rows ? outer + 1 : outer] != 1) return kUnlike;
  const int64_t own = inner ? x.sizes[along] : 1, stride = own == 1 ? 0 : x.strides[along];
  if (own != 1 && own != (rows ? call.m : call.n)) return kUnlike;
  for (int i = 0; i < outer; ++i) {
    const int at = count - outer + i;  // of the result
    if (x.sizes[i] != 1 && (at < 0 || x.sizes[i] != out.sizes[at])) return kUnlike;
  }
  (rows ? call.scale_a : call.scale_b) = {x.data, rows ? stride : 0, rows ? 0 : stride};
  Axis* axis = batch->axes;
  for (int i = 0; i < count; ++i)
    if (out.sizes[i] != 1) (rows ? axis->scale_a : axis->scale_b) = stride_of(x, outer, count, i), ++axis;
  return kDone;
}

// Reads the operands into `batch`; kUnlike where they do not make a product of the prepared dtypes. A vector `a` is a row,
// a vector `b` a column, and the result lacks that dimension. b is null where it is packed.
Status read(const Prepared& p, const Array& a, const Array* b, const Array& out, const Array* c, Batch* batch) {
  if (a.dtype != p.dtypes[0] || (b && b->dtype != p.dtypes[1]) || out.dtype != p.dtypes[2]) return kUnlike;
  if (a.count < 1 || (b && b->count < 1) || !(out.flags & kWriteable)) return kUnlike;
  const bool row = a.count > 1, column = !b || b->count > 1;
  const int count = out.count - row - column, of_a = a.count - 1 - row, of_b = b ? b->count - 1 - column : 0;
  if (count < 0 || count > kMostAxes || of_a > count || of_b > count || (c && c->count > out.count)) return kUnlike;
  Call& call = batch->call;
  call.k = a.sizes[a.count - 1];
  call.m = row ? a.sizes[a.count - 2] : 1;
  call.n = column ? out.sizes[out.count - 1] : 1;
  call.a = {a.data, row ? a.strides[a.count - 2] : 0, a.strides[a.count - 1], p.a};
  if (b) {
    const int at = of_b;  // its first dimension that is no batch's
    if (b->sizes[at] != call.k || (column && b->sizes[at + 1] != call.n)) return kUnlike;
    call.b = {b->data, b->strides[at], column ? b->strides[at + 1] : 0, p.b};
  }
  if (row && out.sizes[count] != call.m) return kUnlike;
  call.out = {out.data, row ? out.strides[count] : 0, column ? out.strides[out.count - 1] : 0, p.out};
  call.c = {c ? c->data : 0, 0, 0, p.c};
  if (row && !stride_of_c(c, out, count, &call.c.row_stride)) return kUnlike;
  if (column && !stride_of_c(c, out, out.count - 1, &call.c.column_stride)) return kUnlike;
  bool empty = call.m == 0 || call.n == 0;
  for (int i = 0; i < count; ++i) {
    const int64_t size = out.sizes[i], first = size_of(a, of_a, count, i), second = b ? size_of(*b, of_b, count, i) : 1;
    if ((first != size && first != 1) || (second != size && second != 1) || (first != size && second != size)) return kUnlike;
    int64_t of_c;
    if (!stride_of_c(c, out, i, &of_c)) return kUnlike;
    if (size == 0) empty = true;
    if (size == 1) continue;
    batch->axes[batch->count++] = {size, stride_of(a, of_a, count, i), b ? stride_of(*b, of_b, count, i) : 0, out.strides[i],
                                   of_c, 0, 0};
  }
  if (empty) call.m = 0;
  return kDone;
}

float single(uint16_t bits, int64_t dtype) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  if (dtype == kFloat16) {
    const uint32_t sign = wide & 0x80000000, rest = bits & 0x7fff;
    value = static_cast<float>(rest) * 0x1p-24f;  // a subnormal number, exactly
    if (rest < 0x400) std::memcpy(&wide, &value, 4);
    else wide = rest < 0x7c00 ? (rest << 13) + (112u << 23) : (rest << 13) | 0x7f800000;
    wide |= sign;
  }
  std::memcpy(&value, &wide, 4);
  return value;
}

// The bias of a call in float32, which is what the kernels read.
class BiasVector {
 public:
  ~BiasVector() { std::free(beyond_); }

  Status read(const Prepared& p, const Array& x, Call* call) {
    const int axis = p.bias_rows ? 0 : x.count - 1;
    const int64_t size = x.sizes[axis], stride = x.strides[axis];
    if (size != (p.bias_rows ? call->m : call->n)) return kUnlike;
    int64_t* const step = p.bias_rows ? &call->bias.row_stride : &call->bias.column_stride;
    call->bias.data = x.data, *step = stride;
    if (p.bias == kFloat32) return kDone;
    if (size > kHere) beyond_ = static_cast<float*>(std::malloc(size * sizeof(float)));
    float* const values = size > kHere ? beyond_ : here_;
    if (!values) return kNoWorkspace;
    const DefaultMode mode;
    for (int64_t i = 0; i < size; ++i) {
      const char* const at = reinterpret_cast<const char*>(x.data + i * stride);
      if (p.bias == kInt32) {
        int32_t value;
        std::memcpy(&value, at, 4);
        values[i] = static_cast<float>(value);
      } else {
        uint16_t bits;
        std::memcpy(&bits, at, 2);
        values[i] = single(bits, p.bias);
      }
    }
    call->bias.data = reinterpret_cast<int64_t>(values), *step = sizeof(float);
    return kDone;
  }

 private:
  static constexpr int64_t kHere = 1024;
  float here_[kHere];
  float* beyond_ = nullptr;
};

void prepare(const Prepared& p, int64_t threads, Batch* batch) {
  Call& call = batch->call;
  call = Call{};
  call.unit = p.unit;
  call.pinned = p.pinned;
  call.symmetric = p.symmetric;
  call.threads = threads < 1 ? 1 : threads;
  call.workspace_bytes = p.workspace_bytes;
  call.alpha = 1;
  batch->folds = p.folds && !p.bias_rows && !p.symmetric;  // such a bias belongs to the rows of one product
}

}  // namespace

extern "C" {

// out = a @ b. Nothing is written where it does not return kDone. kShared: out may overlap an operand.
int64_t gemmhub_cpu_product(const Prepared* p, int64_t threads, const void* a, const void* b, const void* out) {
  const Array &left = array(*p, a), &right = array(*p, b), &result = array(*p, out);
  Batch batch;
  prepare(*p, threads, &batch);
  const Status status = read(*p, left, &right, result, nullptr, &batch);
  if (status != kDone || !batch.call.m) return status;
  const Range written = range_of(result, p->out);
  if (meet(written, range_of(left, p->a)) || meet(written, range_of(right, p->b))) return kShared;
  return multiply_batch(&batch);
}

// The same with an epilogue, or with a b that is `packed`. b, c, bias and the scales are None where the call does not have them;
// c broadcasts to the result, and may be it; bias is a vector, or a matrix of one row or column; scale_out has one element.
int64_t gemmhub_cpu_product_with(const Prepared* p, int64_t threads, const void* a, const void* b, int64_t packed,
                                 const void* out, const void* c, const void* bias, const void* scale_a,
                                 const void* scale_b, const void* scale_out, double alpha, double beta) {
  const Array &left = array(*p, a), &result = array(*p, out);
  const Array *right = array_or_null(*p, b), *addend = array_or_null(*p, c), *vector = array_or_null(*p, bias);
  Batch batch;
  prepare(*p, threads, &batch);
  const Status status = read(*p, left, right, result, addend, &batch);
  if (status != kDone || !batch.call.m) return status;
  const Range written = range_of(result, p->out);
  if (meet(written, range_of(left, p->a)) || (right && meet(written, range_of(*right, p->b)))) return kShared;
  if (addend && meet(written, range_of(*addend, p->c)) && !in_place(*p, *addend, result)) return kShared;
  if (vector && meet(written, range_of(*vector, p->bias))) return kShared;
  const Array* const factors[] = {array_or_null(*p, scale_a), array_or_null(*p, scale_b), array_or_null(*p, scale_out)};
  for (const Array* x : factors)
    if (x && meet(written, range_of(*x, kFloat32))) return kShared;
  const int count = result.count - (left.count > 1) - (!right || right->count > 1);
  for (const bool rows : {true, false}) {
    const Array* const x = factors[rows ? 0 : 1];
    const Status read = x ? read_scales(*x, rows, result, count, &batch) : kDone;
    if (read != kDone) return read;
  }
  Call& call = batch.call;
  call.packed = packed;
  call.activation = p->activation;
  call.alpha = alpha;
  if (factors[2]) call.scale_out = factors[2]->data;
  call.beta = beta;
  BiasVector values;
  if (vector) {
    const Status read = values.read(*p, *vector, &call);
    if (read != kDone) return read;
  }
  return multiply_batch(&batch);
}

// All products of a grouped call, without an epilogue. `axis_a`, `axis_b` and `axis_out` are the dimensions that `ends`, a
// contiguous array of int64, divides: 0 for rows, 1 for columns, -1 for an array with a matrix for each group.
int64_t gemmhub_cpu_groups(const Prepared* p, int64_t threads, int64_t axis_a, int64_t axis_b, int64_t axis_out,
                           const void* ends, const void* a, const void* b, const void* out) {
  const Array &left = array(*p, a), &right = array(*p, b), &result = array(*p, out), &last = array(*p, ends);
  if (left.dtype != p->dtypes[0] || right.dtype != p->dtypes[1] || result.dtype != p->dtypes[2]) return kUnlike;
  if (!(result.flags & kWriteable) || last.count != 1 || (last.sizes[0] > 1 && last.strides[0] != sizeof(int64_t))) return kUnlike;
  Groups groups{};
  groups.count = last.sizes[0];
  groups.ends = reinterpret_cast<const int64_t*>(last.data);
  Batch batch;
  prepare(*p, threads, &batch);
  Call& call = groups.call = batch.call;
  const auto cut = [&](const Array& x, int64_t axis, int64_t dtype, Matrix* matrix, Cut* cut) {
    const int outer = axis < 0;
    if (x.count != 2 + outer || (outer && x.sizes[0] != groups.count)) return false;
    *matrix = {x.data, x.strides[outer], x.strides[outer + 1], dtype};
    *cut = {axis >= 0, x.strides[outer ? 0 : axis]};
    return true;
  };
  if (!cut(left, axis_a, p->a, &call.a, &groups.a) || !cut(right, axis_b, p->b, &call.b, &groups.b)) return kUnlike;
  if (!cut(result, axis_out, p->out, &call.out, &groups.out)) return kUnlike;
  call.m = left.sizes[left.count - 2], call.k = left.sizes[left.count - 1], call.n = right.sizes[right.count - 1];
  if (right.sizes[right.count - 2] != call.k || result.sizes[result.count - 2] != call.m) return kUnlike;
  if (result.sizes[result.count - 1] != call.n) return kUnlike;
  groups.size = axis_a == 0 ? &Call::m : axis_a == 1 ? &Call::k : &Call::n;
  int64_t end = 0;
  for (int64_t i = 0; i < groups.count; end = groups.ends[i++])
    if (groups.ends[i] < end || groups.ends[i] > call.*groups.size) return kUnlike;
  const Range written = range_of(result, p->out);
  if (meet(written, range_of(left, p->a)) || meet(written, range_of(right, p->b))) return kShared;
  return multiply_groups(groups);
}

// Packs b, a matrix, into memory of gemmhub_cpu_packed_bytes().
int64_t gemmhub_cpu_pack_array(const Prepared* p, int64_t threads, const void* b, int64_t packed) {
  const Array& x = array(*p, b);
  Batch batch;
  prepare(*p, threads, &batch);
  Call& call = batch.call;
  call.k = x.sizes[0];
  call.n = x.sizes[1];
  call.b = {x.data, x.strides[0], x.strides[1], p->b};
  call.packed = packed;
  gemmhub_cpu_pack(&call);
  return kDone;
}

// Bytes of b packed, of k by n.
int64_t gemmhub_cpu_bytes_of_packed(const Prepared* p, int64_t n, int64_t k) {
  Call call{};
  call.unit = p->unit;
  call.n = n;
  call.k = k;
  return gemmhub_cpu_packed_bytes(&call);
}

// Bytes of workspace of one product of these sizes, beyond p->workspace_bytes by alignment alone; 0 where so few do not suffice.
int64_t gemmhub_cpu_workspace_of(const Prepared* p, int64_t threads, int64_t m, int64_t n, int64_t k, int64_t packed) {
  Batch batch;
  prepare(*p, threads, &batch);
  Call& call = batch.call;
  call.m = m;
  call.n = n;
  call.k = k;
  call.packed = packed;
  return gemmhub_cpu_workspace(&call);
}

// Whether `object` is read as the matrix of these facts: the layout of arrays is what it is taken for.
int64_t gemmhub_cpu_reads(int64_t head, const void* object, int64_t data, int64_t rows, int64_t stride, const void* dtype) {
  Prepared p{};
  p.head = head;
  const Array& x = array(p, object);
  return x.data == data && x.count == 2 && x.sizes[0] == rows && x.strides[0] == stride && x.dtype == dtype &&
         (x.flags & kWriteable);
}

}  // extern "C"
