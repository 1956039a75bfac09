// The C interface between library.py and the glue, whichever API of muDNN that is compiled against.
//
// Functions return 0, or 1 after leaving a text for gemmhub_mudnn_message(). Nothing is thrown out of them. One
// thread at a time per handle: neither API promises more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// A matrix, or a stack of them, as it lies in memory; the last stride is 1.
struct GemmhubTensor {
    int64_t rank;
    int64_t dims[3];
    int64_t strides[3];  // elements
};

// The enumerations and the order of fields are repeated in library.py.
enum GemmhubType { kHalf = 0, kBfloat16 = 1, kFloat = 2 };
enum GemmhubAddend { kNoAddend = 0, kInPlace = 1, kSeparate = 2 };
enum GemmhubFeature {
    kHasBfloat16 = 1,
    kHasDeterministic = 2,
    kHasSeparateAddend = 4,
    kHasBias = 8,
    kHasBiasOnAddend = 16,  // a bias in addition to an addend in the result's own memory
};

// d = alpha * op(a) * op(b) + beta * c + bias
struct GemmhubForm {
    int32_t type;
    int32_t tensor_math;  // 0: the units that round float32 as IEEE 754 says
    int32_t trans_a;
    int32_t trans_b;
    int32_t addend;
    int32_t with_bias;
    int32_t deterministic;
    int32_t result_type;  // of c, d and the bias; `type` is that of a and b
    GemmhubTensor a, b, c, d, bias;
};

// Asked when the library wants more scratch memory than it had said: the address of that many bytes, or null.
typedef void* (*GemmhubGrow)(size_t bytes);

struct GemmhubCall {
    const void* a;
    const void* b;
    const void* c;
    void* d;
    const void* bias;
    double alpha;
    double beta;
    void* stream;
    void* workspace;
    size_t workspace_bytes;
};

extern "C" {
const char* gemmhub_mudnn_message();
int gemmhub_mudnn_features();
// A handle for `device`, which must be the current one. Never destroyed: the library may be gone at exit.
int gemmhub_mudnn_create(int device, GemmhubGrow grow, void** handle);
int gemmhub_mudnn_plan(void* handle, const GemmhubForm* form, void** plan);
int gemmhub_mudnn_workspace(void* plan, size_t* bytes);
int gemmhub_mudnn_run(void* plan, const GemmhubCall* call);
void gemmhub_mudnn_forget(void* plan);
}

// Unnamed: two libraries of glue in one process share nothing.
namespace {
namespace gemmhub {

// Of the last failure in this thread.
std::string& message() {
    static thread_local std::string text;
    return text;
}

// Thrown where `message` has been set.
struct Failure {};

[[noreturn]] void fail(const std::string& text) {
    message() = text;
    throw Failure{};
}

// The use of a handle during one function. A run that asks for more memory calls the program back, which must not
// begin another one with the same handle then.
class Use {
public:
    explicit Use(bool& used) : used_(used) {
        if (used_) fail("muDNN was called while it asked for more memory for a product that it had begun");
        used_ = true;
    }
    ~Use() { used_ = false; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

private:
    bool& used_;
};

// Hands out pieces of the caller's workspace during one run.
class Memory {
public:
    Memory(void* start, size_t bytes, GemmhubGrow grow)
        : start_(static_cast<char*>(start)), bytes_(bytes), grow_(grow) {}

    void* take(size_t bytes) {
        if (bytes == 0) return nullptr;
        const size_t from = (used_ + 255) / 256 * 256;
        if (start_ != nullptr && from <= bytes_ && bytes <= bytes_ - from) {
            used_ = from + bytes;
            return start_ + from;
        }
        void* more = grow_(bytes);
        if (more == nullptr) refused_ += bytes;
        return more;
    }

    size_t refused() const { return refused_; }

private:
    char* start_;
    size_t bytes_;
    size_t used_ = 0;
    size_t refused_ = 0;
    GemmhubGrow grow_;
};

// Runs `body`; whatever it throws becomes 1 and a message.
template <class Body>
int guarded(Body body) {
    try {
        body();
        return 0;
    } catch (const Failure&) {
        return 1;
    } catch (const std::exception& error) {
        message() = std::string("muDNN threw an exception: ") + error.what();
    } catch (...) {
        message() = "muDNN threw an exception";
    }
    return 1;
}

}  // namespace gemmhub
}  // namespace
