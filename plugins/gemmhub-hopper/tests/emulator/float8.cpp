// 8-bit numbers: floats from and to wider ones, and products of integers.
#include "ptx.cuh"
#include "simt/tensor_cores.hpp"

namespace {

// The nearest code; of two the even one.
template <bool e4m3>
u16 code_of(float x) {
    constexpr int LARGEST = e4m3 ? 0x7e : 0x7b;
    const u16 sign = std::signbit(x) ? 0x80 : 0;
    if (x != x) return sign | 0x7f;
    const double size = std::fabs(static_cast<double>(x));
    int below = 0;
    for (int step = 64; step > 0; step /= 2)
        if (below + step <= LARGEST && simt::float8_value<e4m3>(static_cast<unsigned char>(below + step)) <= size) below += step;
    if (below == LARGEST) return sign | LARGEST;
    const double low = simt::float8_value<e4m3>(static_cast<unsigned char>(below));
    const double high = simt::float8_value<e4m3>(static_cast<unsigned char>(below + 1));
    const double from_low = size - low, from_high = high - size;
    return sign | static_cast<u16>(from_low < from_high || (from_low == from_high && below % 2 == 0) ? below : below + 1);
}

}  // namespace

u16 pack_e4m3(float low, float high) { return code_of<true>(low) | static_cast<u16>(code_of<true>(high) << 8); }
u16 pack_e5m2(float low, float high) { return code_of<false>(low) | static_cast<u16>(code_of<false>(high) << 8); }
u32 unpack_e4m3(u16 both) {
    const u16 low = to_f16(static_cast<float>(simt::float8_value<true>(both & 0xff)));
    return low | static_cast<u32>(to_f16(static_cast<float>(simt::float8_value<true>(static_cast<unsigned char>(both >> 8))))) << 16;
}

int dot_int8(u32 x, u32 y, int sum) {
    u32 value = static_cast<u32>(sum);
    for (u32 i = 0; i < 32; i += 8)
        value += static_cast<u32>(static_cast<signed char>(x >> i & 0xff) * static_cast<signed char>(y >> i & 0xff));
    return static_cast<int>(value);
}
