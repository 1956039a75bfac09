// One product as every stub library describes it, checked and then run on a stream.
//
//     D = activation(alpha * op(A) op(B) + beta * C + gamma * bias)
//
// op(A) is m by k, op(B) k by n, C and D m by n; `batch` of them. Strides are in elements and never negative.
#pragma once

#include <cstdarg>
#include <cstdint>

#include "kinds.h"
#include "musa_sim.h"
namespace musa_double {

// What the multiplication is done in. f16 also adds up in f16; tf32 rounds operands, and adds up in f32.
enum class Math { f16, f32, tf32, f64, c32, c64, i32 };

enum class Activation { none, relu, gelu_tanh };

struct Operand {
  Kind kind = Kind::f32;
  const void* data = nullptr;
  const void* const* pointers = nullptr;  // a device array of `batch` addresses, instead of data
  int64_t row_stride = 0, column_stride = 0, batch_stride = 0;
  bool conjugate = false;
};

// A number in the scale type: copied when the call was made, or read on the device when the work runs.
struct Scalar {
  Kind kind = Kind::f32;
  const void* device = nullptr;
  alignas(16) unsigned char value[16] = {};

  static Scalar of(double number);
  static Scalar from_host(Kind kind, const void* address);
  static Scalar from_device(Kind kind, const void* address);
};

struct Product {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  Math math = Math::f32;
  Operand a, b, c, d;
  Scalar alpha, beta;
  // A vector added to every column (stride 1, 0) or to every row (stride 0, 1); none when data is null.
  Operand bias;
  Scalar gamma = Scalar::of(1.0);
  Activation activation = Activation::none;
  // Scratch memory: overwritten when the work runs, as a kernel that uses it would.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

enum class Verdict { fine, bad_pointer, bad_size, overlap };

// Whether all that the product would touch lies inside live device allocations, is aligned to its elements, and D
// overlaps nothing that is read (C may be D itself). Reads no operand.
Verdict check(const Product& product);

// Whether `bytes` at p lie in one live device allocation.
bool on_device(const void* p, size_t bytes);

// Puts the work on the stream. The runtime's error code; 0 is success.
int enqueue(musaStream_t stream, const Product& product);

// Major * 10 + minor of the current device: 21, 22, 31.
int architecture();
int current_device();

// What each function of a library asks first, and says last.
bool injected_fault(const char* function);
void leave_sticky_error();

// With MUSA_SIM_EXPLAIN set, says on stderr why a call is refused. Gives back `status`.
void explain(const char* function, const char* format, va_list arguments);
template <class Status>
__attribute__((format(printf, 3, 4))) Status refuse(Status status, const char* function, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  explain(function, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace musa_double
