// What a real library leaves undefined and the stub libraries refuse: operands outside their allocations, misaligned, or
// overlapping the result. Also the questions every entry point asks of the simulated runtime.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "product.h"

extern "C" int musaGetDevice(int* device);
extern "C" int musaDeviceGetAttribute(int* value, int attribute, int device);

namespace musa_double {
namespace {

// The bytes from an operand's first element to the end of its last one, all batches together.
int64_t span(const Operand& operand, int64_t rows, int64_t columns, int64_t batch) {
  const int64_t elements =
      (rows - 1) * operand.row_stride + (columns - 1) * operand.column_stride + (batch - 1) * operand.batch_stride + 1;
  return elements * static_cast<int64_t>(size_of(operand.kind));
}

Verdict check_operand(const Operand& operand, int64_t rows, int64_t columns, int64_t batch) {
  if (operand.pointers) {  // the entries are looked at when the work runs
    const bool aligned = reinterpret_cast<uintptr_t>(operand.pointers) % alignof(void*) == 0;
    return aligned && on_device(operand.pointers, batch * sizeof(void*)) ? Verdict::fine : Verdict::bad_pointer;
  }
  if (reinterpret_cast<uintptr_t>(operand.data) % size_of(operand.kind)) return Verdict::bad_pointer;
  if (!on_device(operand.data, size_of(operand.kind))) return Verdict::bad_pointer;
  return on_device(operand.data, span(operand, rows, columns, batch)) ? Verdict::fine : Verdict::bad_size;
}

// Whether two matrices share bytes. Two column slices of one buffer do not, though their ranges interleave.
bool overlap(const Operand& x, int64_t x_bytes, int64_t x_line, const Operand& y, int64_t y_bytes, int64_t y_line) {
  const auto first = reinterpret_cast<intptr_t>(x.data), second = reinterpret_cast<intptr_t>(y.data);
  if (first + x_bytes <= second || second + y_bytes <= first) return false;
  const auto pitch = [](const Operand& o) {
    return std::max(o.row_stride, o.column_stride) * static_cast<int64_t>(size_of(o.kind));
  };
  if (pitch(x) != pitch(y) || x_line > pitch(x) || y_line > pitch(y)) return true;
  const int64_t distance = ((second - first) % pitch(x) + pitch(x)) % pitch(x);
  return distance < x_line || distance + y_line > pitch(x);
}

// The bytes of one contiguous row or column.
int64_t line(const Operand& operand, int64_t rows, int64_t columns) {
  const int64_t length = operand.row_stride <= operand.column_stride ? rows : columns;
  return ((length - 1) * std::min(operand.row_stride, operand.column_stride) + 1) *
         static_cast<int64_t>(size_of(operand.kind));
}

bool same_place(const Operand& x, const Operand& y) {
  return x.data == y.data && x.kind == y.kind && x.row_stride == y.row_stride && x.column_stride == y.column_stride &&
         x.batch_stride == y.batch_stride;
}

// Whether the parts of a batch of results overlap each other.
bool parts_overlap(const Operand& d, int64_t rows, int64_t columns, int64_t batch) {
  if (batch <= 1 || d.pointers) return false;
  const int64_t extent = (rows - 1) * d.row_stride + (columns - 1) * d.column_stride + 1;
  if (d.batch_stride >= extent) return false;
  const int64_t short_line = line(d, rows, columns) / static_cast<int64_t>(size_of(d.kind));
  const bool interleaved = d.batch_stride >= short_line &&
                           std::max(d.row_stride, d.column_stride) >= (batch - 1) * d.batch_stride + short_line;
  return !interleaved;
}

}  // namespace

bool on_device(const void* p, size_t bytes) {
  return p && musaSimExtent(p) >= bytes && musaSimDeviceOf(p) == current_device();
}

Verdict check(const Product& p) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return Verdict::fine;
  const bool may_read_c = p.beta.device || *std::max_element(p.beta.value, p.beta.value + 16) != 0;
  Verdict verdict = check_operand(p.d, p.m, p.n, p.batch);
  if (verdict == Verdict::fine && p.k) verdict = check_operand(p.a, p.m, p.k, p.batch);
  if (verdict == Verdict::fine && p.k) verdict = check_operand(p.b, p.k, p.n, p.batch);
  if (verdict == Verdict::fine && may_read_c) verdict = check_operand(p.c, p.m, p.n, p.batch);
  if (verdict == Verdict::fine && p.bias.data)
    verdict = check_operand(p.bias, p.bias.row_stride ? p.m : 1, p.bias.column_stride ? p.n : 1, 1);
  if (verdict != Verdict::fine) return verdict;
  if (p.workspace_bytes && !on_device(p.workspace, p.workspace_bytes)) return Verdict::bad_pointer;

  if (parts_overlap(p.d, p.m, p.n, p.batch)) return Verdict::overlap;
  if (p.d.pointers) return Verdict::fine;
  const int64_t d_bytes = span(p.d, p.m, p.n, p.batch), d_line = line(p.d, p.m, p.n);
  const auto touches = [&](const Operand& x, int64_t rows, int64_t columns, int64_t batch) {
    if (x.pointers || !x.data) return false;
    const int64_t bytes = span(x, rows, columns, batch);
    if (batch > 1) {  // slices of one buffer are told apart for single products only
      const auto first = reinterpret_cast<intptr_t>(x.data), second = reinterpret_cast<intptr_t>(p.d.data);
      return !(first + bytes <= second || second + d_bytes <= first) && x.data == p.d.data;
    }
    return overlap(x, bytes, line(x, rows, columns), p.d, d_bytes, d_line);
  };
  if (p.k && (touches(p.a, p.m, p.k, p.batch) || touches(p.b, p.k, p.n, p.batch))) return Verdict::overlap;
  if (may_read_c && !same_place(p.c, p.d) && touches(p.c, p.m, p.n, p.batch)) return Verdict::overlap;
  if (p.bias.data && touches(p.bias, p.bias.row_stride ? p.m : 1, p.bias.column_stride ? p.n : 1, 1))
    return Verdict::overlap;
  if (p.workspace_bytes) {
    Operand scratch;
    scratch.kind = Kind::i8;
    scratch.data = p.workspace;
    scratch.row_stride = 1;
    scratch.column_stride = static_cast<int64_t>(p.workspace_bytes);
    if (touches(scratch, static_cast<int64_t>(p.workspace_bytes), 1, 1)) return Verdict::overlap;
  }
  return Verdict::fine;
}

int current_device() {
  int device = -1;
  musaGetDevice(&device);
  return device;
}

int architecture() {
  constexpr int compute_capability_major = 75, compute_capability_minor = 76;
  int major = 0, minor = 0;
  musaDeviceGetAttribute(&major, compute_capability_major, current_device());
  musaDeviceGetAttribute(&minor, compute_capability_minor, current_device());
  return major * 10 + minor;
}

bool injected_fault(const char* function) { return musaSimShouldFail(function) != 0; }

void leave_sticky_error() {
  if (const char* error = std::getenv("MUSA_SIM_BLAS_STICKY")) musaSimSetSticky(std::atoi(error));
}

void explain(const char* function, const char* format, va_list arguments) {
  if (!std::getenv("MUSA_SIM_EXPLAIN")) return;
  std::fprintf(stderr, "%s: ", function);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
}

}  // namespace musa_double
