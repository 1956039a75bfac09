// Products through muDNN's C API, which <mudnn.h> holds from SDK 5.1. Its one operation serves matrices and stacks.
//
// Every number comes from the installed header; the types of descriptors from the functions that make them.
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include <mudnn.h>

#include "glue.h"

namespace {

using gemmhub::fail;

void check(const char* step, mudnnStatus_t status) {
    if (status != MUDNN_STATUS_SUCCESS) {
        fail(std::string(step) + ": status " + std::to_string(static_cast<int>(status)));
    }
}

template <class T>
T made_by(mudnnStatus_t (*)(T*));

mudnnDataType_t type_of(int32_t type) {
    switch (type) {
        case kHalf: return MUDNN_DATA_HALF;
        case kBfloat16: return MUDNN_DATA_BFLOAT16;
        default: return MUDNN_DATA_FLOAT;
    }
}

class Tensor {
public:
    Tensor() { check("mudnnCreateTensorDescriptor", mudnnCreateTensorDescriptor(&descriptor_)); }
    ~Tensor() { mudnnDestroyTensorDescriptor(descriptor_); }
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;

    void describe(int32_t type, const GemmhubTensor& form) {
        check("mudnnSetTensorNdDescriptorWithScale",
              mudnnSetTensorNdDescriptorWithScale(descriptor_, MUDNN_TENSOR_NCHW, type_of(type),
                                                  static_cast<int>(form.rank), form.dims, form.strides, 1.0f));
    }

    auto get() const { return descriptor_; }

private:
    decltype(made_by(mudnnCreateTensorDescriptor)) descriptor_{};
};

class Operation {
public:
    Operation() { check("mudnnCreateBatchMatMulDescriptor", mudnnCreateBatchMatMulDescriptor(&descriptor_)); }
    ~Operation() { mudnnDestroyBatchMatMulDescriptor(descriptor_); }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    void set(const GemmhubForm& form, double alpha, double beta) {
        check("mudnnSetBatchMatMulDescriptorEx",
              mudnnSetBatchMatMulDescriptorEx(descriptor_, form.tensor_math ? MUDNN_TENSOR_OP_MATH : MUDNN_FMA_MATH,
                                              form.trans_a != 0, form.trans_b != 0, false,
                                              MUDNN_MATMULLT_EPILOGUE_DEFAULT, 0, alpha, beta,
                                              form.with_bias ? 1.0 : 0.0));
    }

    auto get() const { return descriptor_; }

private:
    decltype(made_by(mudnnCreateBatchMatMulDescriptor)) descriptor_{};
};

struct Handle {
    decltype(made_by(mudnnCreate)) dnn{};
    GemmhubGrow grow;
    bool used = false;
};

class Plan {
public:
    Plan(Handle& handle, const GemmhubForm& form) : handle_(handle), form_(form) {
        if (form.deterministic) fail("the meaning of this API's switches is not known, that of determinism included");
        a_.describe(form.type, form.a);
        b_.describe(form.type, form.b);
        d_.describe(form.result_type, form.d);
        if (form.addend == kSeparate) c_.describe(form.result_type, form.c);
        if (form.with_bias) bias_.describe(form.result_type, form.bias);
    }

    size_t workspace() {
        gemmhub::Use use(handle_.used);
        // The stream of the last run may be gone.
        check("mudnnSetStream", mudnnSetStream(handle_.dnn, nullptr));
        operation_.set(form_, 1.0, form_.addend == kNoAddend ? 0.0 : 1.0);
        return needed();
    }

    void run(const GemmhubCall& call) {
        gemmhub::Use use(handle_.used);
        check("mudnnSetStream", mudnnSetStream(handle_.dnn, static_cast<musaStream_t>(call.stream)));
        operation_.set(form_, call.alpha, form_.addend == kNoAddend ? 0.0 : call.beta);
        const size_t bytes = needed();
        gemmhub::Memory memory(call.workspace, call.workspace_bytes, handle_.grow);
        void* workspace = memory.take(bytes);
        if (bytes != 0 && workspace == nullptr) {
            fail("no room for a workspace of " + std::to_string(bytes) + " bytes");
        }
        check("mudnnBatchMatMulBias",
              mudnnBatchMatMulBias(handle_.dnn, operation_.get(), a_.get(), call.a, b_.get(), call.b, c().get(),
                                   form_.addend == kSeparate ? call.c : call.d, d_.get(), call.d,
                                   form_.with_bias ? bias_.get() : nullptr, form_.with_bias ? call.bias : nullptr,
                                   workspace, bytes));
    }

private:
    size_t needed() {
        size_t bytes = 0;
        check("mudnnBatchMatmulGetWorkspaceSize",
              mudnnBatchMatmulGetWorkspaceSize(handle_.dnn, operation_.get(), a_.get(), b_.get(), c().get(), d_.get(),
                                               &bytes));
        return bytes;
    }

    const Tensor& c() const { return form_.addend == kSeparate ? c_ : d_; }

    Handle& handle_;
    GemmhubForm form_;
    Operation operation_;
    Tensor a_, b_, c_, d_, bias_;
};

}  // namespace

const char* gemmhub_mudnn_message() { return gemmhub::message().c_str(); }

int gemmhub_mudnn_features() { return kHasBfloat16 | kHasSeparateAddend | kHasBias | kHasBiasOnAddend; }

int gemmhub_mudnn_create(int, GemmhubGrow grow, void** handle) {
    return gemmhub::guarded([&] {
        auto made = std::make_unique<Handle>();
        made->grow = grow;
        check("mudnnCreate", mudnnCreate(&made->dnn));
        *handle = made.release();
    });
}

int gemmhub_mudnn_plan(void* handle, const GemmhubForm* form, void** plan) {
    return gemmhub::guarded([&] { *plan = new Plan(*static_cast<Handle*>(handle), *form); });
}

int gemmhub_mudnn_workspace(void* plan, size_t* bytes) {
    return gemmhub::guarded([&] { *bytes = static_cast<Plan*>(plan)->workspace(); });
}

int gemmhub_mudnn_run(void* plan, const GemmhubCall* call) {
    return gemmhub::guarded([&] { static_cast<Plan*>(plan)->run(*call); });
}

void gemmhub_mudnn_forget(void* plan) { delete static_cast<Plan*>(plan); }
