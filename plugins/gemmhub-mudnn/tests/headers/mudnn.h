// A muDNN in one header, on host memory, for what the simulated home has not: headers that lack functions (BARE),
// workspaces that are not what was said, exceptions. float32 only. Tests steer it through the functions at the end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct MUstream_st;
typedef MUstream_st* musaStream_t;

namespace fake {
inline std::string log;
inline std::vector<size_t> wants;  // workspace that Run asks for, piece by piece
inline size_t says = 0;            // what GetWorkspaceSize answers
inline int fails = 0;              // 1: NOT_SUPPORTED, 2: a status without a name, 3: an exception
inline std::vector<void*> got;
inline void note(const std::string& text) { log += text + "\n"; }
}  // namespace fake

namespace musa::dnn {

enum class Status { SUCCESS = 40, INVALID_PARAMETER = 0, NOT_SUPPORTED = 41, ODD = 42 };

using MemoryHandler = std::unique_ptr<void, std::function<void(void*)>>;
using MemoryMaintainer = std::function<MemoryHandler(size_t)>;

class Handle {
public:
    explicit Handle(int device) { fake::note("Handle " + std::to_string(device)); }
    Status SetStream(musaStream_t stream) {
        fake::note("SetStream " + std::to_string(reinterpret_cast<uintptr_t>(stream)));
        return Status::SUCCESS;
    }
#ifndef BARE
    void SetAllowTF32(bool allow) { fake::note("SetAllowTF32 " + std::to_string(allow)); }
#endif
};

class Tensor {
public:
    enum class Type {
        FLOAT = 9,
        HALF = 11,
#ifndef BARE
        BFLOAT16 = 12,
#endif
    };
    enum class Format { UNKNOWN = 3, NCHW = 5 };
    Status SetAddr(const void* address) { data = static_cast<float*>(const_cast<void*>(address)); return Status::SUCCESS; }
    Status SetType(Type type) { return type == Type::FLOAT ? Status::SUCCESS : Status::NOT_SUPPORTED; }
    Status SetFormat(Format) { return Status::SUCCESS; }
    Status SetNdInfo(int n, const int64_t* d, const int64_t* s) {
        dims.assign(d, d + n);
        strides.assign(s, s + n);
        return Status::SUCCESS;
    }
    float& at(int64_t row, int64_t col) const { return data[row * strides[0] + col * strides[1]]; }
    float* data = nullptr;
    std::vector<int64_t> dims, strides;
};

template <int kStack>
class Product {
public:
    enum class ComputeMode { SCALAR = 4, TENSOR = 2 };
    Status SetComputeMode(ComputeMode mode) {
        fake::note(mode == ComputeMode::TENSOR ? "TENSOR" : "SCALAR");
        return Status::SUCCESS;
    }
    Status SetTranspose(bool left, bool right) { left_ = left; right_ = right; return Status::SUCCESS; }
    Status SetAlpha(double x) { alpha_ = x; return Status::SUCCESS; }
    Status SetBeta(double x) { beta_ = x; return Status::SUCCESS; }
    Status SetGamma(double x) { gamma_ = x; return Status::SUCCESS; }
    Status Run(Handle&, Tensor& c, const Tensor& a, const Tensor& b, const MemoryMaintainer& maintainer = nullptr) {
        fake::note("Run");
        return multiply(c, a, b, c, nullptr, maintainer);
    }
    Status RunWithBiasAdd(Handle&, Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias,
                          const MemoryMaintainer& maintainer = nullptr) {
        fake::note("RunWithBiasAdd in place");
        return multiply(c, a, b, c, &bias, maintainer);
    }
#ifndef BARE
    Status SetDeterministic(bool on) { fake::note("SetDeterministic " + std::to_string(on)); return Status::SUCCESS; }
    Status GetWorkspaceSize(Handle&, size_t& size, const Tensor&, const Tensor&, const Tensor&) {
        size = fake::says;
        return Status::SUCCESS;
    }
    Status RunWithBiasAdd(Handle&, Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias,
                          const MemoryMaintainer& maintainer = nullptr) {
        fake::note("RunWithBiasAdd apart");
        return multiply(d, a, b, c, bias.dims.empty() ? nullptr : &bias, maintainer);
    }
#endif

private:
    Status multiply(Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor* bias,
                    const MemoryMaintainer& maintainer) {
        if (fake::fails == 1) return Status::NOT_SUPPORTED;
        if (fake::fails == 2) return Status::ODD;
        if (fake::fails == 3) throw std::runtime_error("out of luck");
        fake::got.clear();
        std::vector<MemoryHandler> pieces;
        for (size_t bytes : fake::wants) {
            pieces.push_back(maintainer(bytes));
            fake::got.push_back(pieces.back().get());
            if (bytes != 0 && pieces.back() == nullptr) return Status::INVALID_PARAMETER;
        }
        const int64_t depth = left_ ? a.dims[0] : a.dims[1];
        for (int64_t i = 0; i < d.dims[0]; i++) {
            for (int64_t j = 0; j < d.dims[1]; j++) {
                double sum = 0;
                for (int64_t l = 0; l < depth; l++) {
                    sum += double(left_ ? a.at(l, i) : a.at(i, l)) * (right_ ? b.at(j, l) : b.at(l, j));
                }
                sum *= alpha_;
                if (beta_ != 0) sum += beta_ * c.at(i, j);
                if (bias != nullptr) sum += gamma_ * bias->data[j];
                d.at(i, j) = static_cast<float>(sum);
            }
        }
        return Status::SUCCESS;
    }
    bool left_ = false, right_ = false;
    double alpha_ = 1, beta_ = 0, gamma_ = 1;
};

using MatMul = Product<0>;
using BatchMatMul = Product<1>;

}  // namespace musa::dnn

extern "C" {
__attribute__((used)) inline const char* fake_log() { return fake::log.c_str(); }
__attribute__((used)) inline void fake_set(int fails, size_t says, const size_t* wants, size_t count) {
    fake::fails = fails;
    fake::says = says;
    fake::wants.assign(wants, wants + count);
    fake::log.clear();
}
__attribute__((used)) inline void* fake_piece(size_t which) { return fake::got.at(which); }
}
