// Calls of muDNN's C++ API for the tests, flattened to C. Built against a simulated home's header.
#include MUDNN_HEADER

using namespace musa::dnn;

struct Spec {
  const void* address;
  int type;  // 0 half, 1 bfloat16, 2 float, 3 double
  int ndim;
  int64_t dims[8], strides[8];
};

// What a memory maintainer hands out, and what became of it.
struct Workspace {
  void* memory;
  size_t asked;
  int calls, released;
};

struct Options {
  int batched, tensor_mode, allow_tf32, left, right;
  double alpha, beta, gamma;
  musaStream_t stream;
};

static Status fill(Tensor& tensor, const Spec& spec) {
  static const Tensor::Type types[] = {Tensor::Type::HALF, Tensor::Type::BFLOAT16, Tensor::Type::FLOAT,
                                       Tensor::Type::DOUBLE};
  tensor.SetAddr(spec.address);
  tensor.SetType(types[spec.type]);
  return spec.ndim ? tensor.SetNdInfo(spec.ndim, spec.dims, spec.strides) : Status::SUCCESS;
}

template <class Op>
static Status call(const Options& o, const Spec* a, const Spec* b, const Spec* c, const Spec* bias,
                   Workspace* workspace, size_t* bytes) {
  Handle handle;
  Op op;
  Tensor ta, tb, tc, tbias;
  for (Status status : {handle.SetStream(o.stream), fill(ta, *a), fill(tb, *b), fill(tc, *c)}) {
    if (status != Status::SUCCESS) return status;
  }
  if (!o.allow_tf32) handle.SetAllowTF32(false);
  op.SetComputeMode(o.tensor_mode ? Op::ComputeMode::TENSOR : Op::ComputeMode::SCALAR);
  op.SetTranspose(o.left, o.right);
  op.SetAlpha(o.alpha);
  op.SetBeta(o.beta);
  op.SetGamma(o.gamma);
  if (bytes) return op.GetWorkspaceSize(handle, *bytes, tc, ta, tb);
  MemoryMaintainer maintainer;
  if (workspace) {
    maintainer = [workspace](size_t size) {
      workspace->asked = size;
      ++workspace->calls;
      return MemoryHandler(workspace->memory, [workspace](void*) { ++workspace->released; });
    };
  }
  if (!bias) return op.Run(handle, tc, ta, tb, maintainer);
  const Status status = fill(tbias, *bias);
  return status == Status::SUCCESS ? op.RunWithBiasAdd(handle, tc, ta, tb, tbias, maintainer) : status;
}

extern "C" int matmul(const Options* o, const Spec* a, const Spec* b, const Spec* c, const Spec* bias,
                      Workspace* workspace, size_t* bytes) {
  return static_cast<int>(o->batched ? call<BatchMatMul>(*o, a, b, c, bias, workspace, bytes)
                                     : call<MatMul>(*o, a, b, c, bias, workspace, bytes));
}

// A product by a handle of that device, after the current device, or the handle, is gone.
extern "C" int use_after_destroy(const Spec* a, const Spec* b, const Spec* c) {
  alignas(Handle) char memory[sizeof(Handle)];
  Handle* handle = new (memory) Handle();
  handle->~Handle();
  Tensor ta, tb, tc;
  fill(ta, *a);
  fill(tb, *b);
  fill(tc, *c);
  return static_cast<int>(MatMul().Run(*handle, tc, ta, tb));
}
