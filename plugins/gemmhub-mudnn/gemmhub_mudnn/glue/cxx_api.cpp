// MatMul and BatchMatMul through muDNN's C++ API: <mudnn.h> up to SDK 5.0, <mudnncxx/mudnn.h> from 5.1.
//
// Every number (types, modes, statuses) and every class layout comes from the installed header. What some
// generations of it lack is found out by the compiler, so that one source serves them all.
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef GEMMHUB_MUDNNCXX
#include <mudnncxx/mudnn.h>
#else
#include <mudnn.h>
#endif

#include "glue.h"

namespace {

namespace dnn = ::musa::dnn;
using gemmhub::fail;

// The name of a status, where the header has it.
#define GEMMHUB_STATUS(NAME)                                                                  \
    template <class S>                                                                        \
    auto is_##NAME(S status, int)->decltype((void)S::NAME, bool()) { return status == S::NAME; } \
    template <class S>                                                                        \
    bool is_##NAME(S, long) { return false; }
GEMMHUB_STATUS(INVALID_PARAMETER)
GEMMHUB_STATUS(NOT_INITIALIZED)
GEMMHUB_STATUS(ALLOC_FAILED)
GEMMHUB_STATUS(NOT_SUPPORTED)
GEMMHUB_STATUS(INTERNAL_ERROR)
GEMMHUB_STATUS(ARCH_MISMATCH)
GEMMHUB_STATUS(EXECUTION_FAILED)
#undef GEMMHUB_STATUS

std::string words(dnn::Status status) {
    const char* name = is_INVALID_PARAMETER(status, 0)  ? "INVALID_PARAMETER"
                       : is_NOT_INITIALIZED(status, 0)  ? "NOT_INITIALIZED"
                       : is_ALLOC_FAILED(status, 0)     ? "ALLOC_FAILED"
                       : is_NOT_SUPPORTED(status, 0)    ? "NOT_SUPPORTED"
                       : is_INTERNAL_ERROR(status, 0)   ? "INTERNAL_ERROR"
                       : is_ARCH_MISMATCH(status, 0)    ? "ARCH_MISMATCH"
                       : is_EXECUTION_FAILED(status, 0) ? "EXECUTION_FAILED"
                                                        : "status";
    return std::string(name) + " (" + std::to_string(static_cast<int>(status)) + ")";
}

// Calls `step`, which may return a Status or nothing.
template <class Step>
void checked(const char* name, Step step) {
    if constexpr (std::is_void_v<decltype(step())>) {
        step();
    } else {
        const dnn::Status status = step();
        if (status != dnn::Status::SUCCESS) fail(std::string(name) + ": " + words(status));
    }
}

// What this header has.
template <class H, class = void>
struct HasTF32 : std::false_type {};
template <class H>
struct HasTF32<H, std::void_t<decltype(std::declval<H&>().SetAllowTF32(true))>> : std::true_type {};

template <class O, class = void>
struct HasDeterministic : std::false_type {};
template <class O>
struct HasDeterministic<O, std::void_t<decltype(std::declval<O&>().SetDeterministic(true))>> : std::true_type {};

template <class T, class = void>
struct HasBfloat16 : std::false_type {};
template <class T>
struct HasBfloat16<T, std::void_t<decltype(T::BFLOAT16)>> : std::true_type {};

using H = dnn::Handle&;
using T = dnn::Tensor&;
using M = dnn::MemoryMaintainer&;

template <class O, class = void>
struct HasWorkspace : std::false_type {};
template <class O>
struct HasWorkspace<O, std::void_t<decltype(std::declval<O&>().GetWorkspaceSize(
                           std::declval<H>(), std::declval<size_t&>(), std::declval<T>(), std::declval<T>(),
                           std::declval<T>()))>> : std::true_type {};

// c = alpha a b + beta c + gamma bias
template <class O, class = void>
struct HasBiasInPlace : std::false_type {};
template <class O>
struct HasBiasInPlace<O, std::void_t<decltype(std::declval<O&>().RunWithBiasAdd(
                             std::declval<H>(), std::declval<T>(), std::declval<T>(), std::declval<T>(),
                             std::declval<T>(), std::declval<M>()))>> : std::true_type {};

// d = alpha a b + beta c + gamma bias
template <class O, class = void>
struct HasBiasApart : std::false_type {};
template <class O>
struct HasBiasApart<O, std::void_t<decltype(std::declval<O&>().RunWithBiasAdd(
                           std::declval<H>(), std::declval<T>(), std::declval<T>(), std::declval<T>(),
                           std::declval<T>(), std::declval<T>(), std::declval<M>()))>> : std::true_type {};

template <class Types>
Types type_of(int32_t type) {
    if constexpr (HasBfloat16<Types>::value) {
        if (type == kBfloat16) return Types::BFLOAT16;
    }
    if (type == kHalf) return Types::HALF;
    if (type == kFloat) return Types::FLOAT;
    fail("this muDNN has no bfloat16");
}

// TF32 is a property of the handle, which products of both kinds share, and muDNN's default is to allow it.
template <class H>
void allow_tf32(H& handle, bool allow) {
    if constexpr (HasTF32<H>::value) checked("SetAllowTF32", [&] { return handle.SetAllowTF32(allow); });
}

struct Handle {
    Handle(int device, GemmhubGrow grow) : dnn(device), grow(grow) {
        // Constructors give no status.
        checked("SetStream on a new handle", [&] { return dnn.SetStream(nullptr); });
    }
    dnn::Handle dnn;
    GemmhubGrow grow;
    bool used = false;
};

struct Plan {
    virtual ~Plan() = default;
    virtual size_t workspace() = 0;
    virtual void run(const GemmhubCall& call) = 0;
};

template <class Op>
class Product final : public Plan {
public:
    Product(Handle& handle, const GemmhubForm& form) : handle_(handle), form_(form) {
        describe(a_, form.type, form.a);
        describe(b_, form.type, form.b);
        describe(d_, form.result_type, form.d);
        if (form.addend == kSeparate) describe(c_, form.result_type, form.c);
        if (form.with_bias) describe(bias_, form.result_type, form.bias);
        using Mode = typename Op::ComputeMode;
        checked("SetComputeMode", [&] { return op_.SetComputeMode(form.tensor_math ? Mode::TENSOR : Mode::SCALAR); });
        checked("SetTranspose", [&] { return op_.SetTranspose(form.trans_a != 0, form.trans_b != 0); });
        if constexpr (HasDeterministic<Op>::value) {
            checked("SetDeterministic", [&] { return op_.SetDeterministic(form.deterministic != 0); });
        } else if (form.deterministic) {
            fail("this muDNN has no SetDeterministic");
        }
    }

    size_t workspace() override {
        gemmhub::Use use(handle_.used);
        size_t bytes = 0;
        if constexpr (HasWorkspace<Op>::value) {
            use_stream(nullptr);  // that of the last run may be gone
            allow_tf32(handle_.dnn, form_.tensor_math != 0);
            checked("GetWorkspaceSize", [&] { return op_.GetWorkspaceSize(handle_.dnn, bytes, d_, a_, b_); });
        }
        return bytes;
    }

    void run(const GemmhubCall& call) override {
        gemmhub::Use use(handle_.used);
        a_.SetAddr(call.a);
        b_.SetAddr(call.b);
        d_.SetAddr(call.d);
        if (form_.addend == kSeparate) c_.SetAddr(call.c);
        if (form_.with_bias) bias_.SetAddr(call.bias);
        checked("SetAlpha", [&] { return op_.SetAlpha(call.alpha); });
        checked("SetBeta", [&] { return op_.SetBeta(form_.addend == kNoAddend ? 0.0 : call.beta); });
        checked("SetGamma", [&] { return op_.SetGamma(form_.with_bias ? 1.0 : 0.0); });
        use_stream(call.stream);
        allow_tf32(handle_.dnn, form_.tensor_math != 0);
        gemmhub::Memory memory(call.workspace, call.workspace_bytes, handle_.grow);
        dnn::MemoryMaintainer maintainer = [&memory](size_t bytes) {
            return dnn::MemoryHandler(memory.take(bytes), [](void*) {});
        };
        try {
            multiply(maintainer);
        } catch (const gemmhub::Failure&) {
            if (memory.refused() != 0) {
                gemmhub::message() += " (no room for a workspace of " + std::to_string(memory.refused()) + " bytes)";
            }
            throw;
        }
    }

private:
    void use_stream(void* stream) {
        checked("SetStream", [&] { return handle_.dnn.SetStream(static_cast<musaStream_t>(stream)); });
    }

    void describe(dnn::Tensor& tensor, int32_t type, const GemmhubTensor& form) {
        checked("SetType", [&] { return tensor.SetType(type_of<dnn::Tensor::Type>(type)); });
        checked("SetFormat", [&] { return tensor.SetFormat(dnn::Tensor::Format::NCHW); });
        checked("SetNdInfo", [&] {
            return tensor.SetNdInfo(static_cast<int>(form.rank), form.dims, form.strides);
        });
    }

    void multiply(dnn::MemoryMaintainer& maintainer) {
        if (!form_.with_bias && form_.addend != kSeparate) {
            checked("Run", [&] { return op_.Run(handle_.dnn, d_, a_, b_, maintainer); });
            return;
        }
        if (form_.addend != kSeparate) {
            if constexpr (HasBiasInPlace<Op>::value) {
                checked("RunWithBiasAdd", [&] {
                    return op_.RunWithBiasAdd(handle_.dnn, d_, a_, b_, bias_, maintainer);
                });
                return;
            }
        }
        if constexpr (HasBiasApart<Op>::value) {
            // A tensor that is not described stands for no bias. With beta 0 nothing is read from c, which may be d.
            if (form_.addend != kInPlace) {
                dnn::Tensor& c = form_.addend == kSeparate ? c_ : d_;
                checked("RunWithBiasAdd", [&] {
                    return op_.RunWithBiasAdd(handle_.dnn, d_, a_, b_, c, bias_, maintainer);
                });
                return;
            }
        }
        fail("this muDNN has no such RunWithBiasAdd");
    }

    Handle& handle_;
    GemmhubForm form_;
    Op op_;
    dnn::Tensor a_, b_, c_, d_, bias_;
};

template <class Op>
int features_of() {
    int all = kHasBfloat16 * HasBfloat16<dnn::Tensor::Type>::value;
    all |= kHasDeterministic * HasDeterministic<Op>::value;
    all |= kHasSeparateAddend * HasBiasApart<Op>::value;
    all |= kHasBias * (HasBiasInPlace<Op>::value || HasBiasApart<Op>::value);
    all |= kHasBiasOnAddend * HasBiasInPlace<Op>::value;
    return all;
}

}  // namespace

const char* gemmhub_mudnn_message() { return gemmhub::message().c_str(); }

int gemmhub_mudnn_features() { return features_of<dnn::MatMul>() & features_of<dnn::BatchMatMul>(); }

int gemmhub_mudnn_create(int device, GemmhubGrow grow, void** handle) {
    return gemmhub::guarded([&] { *handle = new Handle(device, grow); });
}

int gemmhub_mudnn_plan(void* handle, const GemmhubForm* form, void** plan) {
    return gemmhub::guarded([&] {
        Handle& here = *static_cast<Handle*>(handle);
        std::unique_ptr<Plan> made;
        if (form->d.rank == 2) {
            made = std::make_unique<Product<dnn::MatMul>>(here, *form);
        } else {
            made = std::make_unique<Product<dnn::BatchMatMul>>(here, *form);
        }
        *plan = made.release();
    });
}

int gemmhub_mudnn_workspace(void* plan, size_t* bytes) {
    return gemmhub::guarded([&] { *bytes = static_cast<Plan*>(plan)->workspace(); });
}

int gemmhub_mudnn_run(void* plan, const GemmhubCall* call) {
    return gemmhub::guarded([&] { static_cast<Plan*>(plan)->run(*call); });
}

void gemmhub_mudnn_forget(void* plan) { delete static_cast<Plan*>(plan); }
