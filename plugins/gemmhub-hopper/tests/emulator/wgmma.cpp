// wgmma: operands by descriptors or from registers, read late, and added as tensor cores do.
#include "launch.hpp"
#include "simt/tensor_cores.hpp"

namespace emulator {

// Kinds of elements: what is multiplied most is compiled for each pair of a's and b's.
enum Input { BF16, F16, TF32, E4M3, E5M2, S8 };
template <int input>
using Stored = std::conditional_t<input == TF32, float, std::conditional_t<(input > TF32), unsigned char, u16>>;
template <int input>
constexpr u32 SIZE = sizeof(Stored<input>);
template <int input>
constexpr u32 DEPTH = 32 / SIZE<input>;  // of one wgmma step

template <int input>
static double widened(Stored<input> x) {
    if constexpr (input == TF32) {
        // Tensor cores ignore the low 13 bits.
        const u32 bits = __float_as_uint(x), special = (bits & 0x7f800000) == 0x7f800000 ? 0x1fff : 0;
        return __uint_as_float(bits & (~0x1fffu | special));
    }
    if constexpr (input == S8) return static_cast<signed char>(x);
    if constexpr (input == E4M3 || input == E5M2) return simt::float8_value<input == E4M3>(x);
    if constexpr (input == BF16) return from_bf16(x);
    if constexpr (input == F16) {
        // from_f16 calls a function where the host has no instruction; 2^112 is what the exponents' biases differ by.
        if ((x & 0x7c00) == 0x7c00) return from_f16(x);
        const float value = __uint_as_float(u32(x & 0x7fff) << 13) * 0x1p112f;
        return x & 0x8000 ? -value : value;
    }
}

// The swizzle that the descriptor says, in bytes.
static u32 swizzle_of(u64 d) { return 256 >> (d >> 62); }

// Whether a number of float16 is subnormal.
static bool is_subnormal(u16 x) { return u16((x & 0x7fff) - 1) < 0x3ff; }

// Line `i` of M (N) of one wgmma step, by the fields of the descriptor. Returns whether it has subnormal float16 numbers.
template <int input>
static bool read_line(Block& block, u64 d, bool mn, u32 i, double* to) {
    constexpr u32 size = SIZE<input>;
    const u32 begin = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
    const u32 swizzle = swizzle_of(d);
    Stored<input> values[DEPTH<input>];
    // The field has 18 bits of the address; shared memory begins at a multiple of that.
    if (mn) {
        const u32 at = WINDOW + begin + i / 64 * leading + i % 64 * size;
        for (u32 k = 0; k < DEPTH<input>; ++k)
            memcpy(&values[k], shared_at(block, swizzle_of(at + k / 8 * stride + k % 8 * 128, swizzle)), size);
    } else {
        // Swizzles move units of 16 bytes.
        const u32 at = WINDOW + begin + i / 8 * stride + i % 8 * swizzle;
        for (u32 unit = 0; unit < 32; unit += 16)
            memcpy(&values[unit / size], shared_at(block, swizzle_of(at + unit, swizzle)), 16);
    }
    for (u32 k = 0; k < DEPTH<input>; ++k) to[k] = widened<input>(values[k]);
    u16 subnormal = 0;
    for (u32 k = 0; k < DEPTH<input> && input == F16; ++k) subnormal |= is_subnormal(values[k]);
    return subnormal;
}

// Element (lane / 4 + 8 h, k) of a fragment: four lanes have those of a row.
template <int input>
static double fragment_element(const Multiply& m, u32 h, u32 k) {
    constexpr u32 wide = 4 / SIZE<input>;  // elements of a register
    const u32 lane = me().thread % 32, other = lane / 4 * 4 + k / wide % 4;
    const u32* registers = (machine->current - lane + other)->fragments[m.number % FRAGMENTS];
    return widened<input>(read_as<Stored<input>>(
        reinterpret_cast<const unsigned char*>(&registers[2 * (k / wide / 4) + h]) + SIZE<input> * (k % wide)));
}

constexpr double LEAST_NORMAL = 0x1p-14;  // of float16

// The largest magnitude of float16 products for the alignment: a subnormal factor counts as the least normal number.
template <u32 depth>
static double aligned_magnitude(const double (&row)[depth], const double (&column)[depth]) {
    double largest = 0;
    for (u32 k = 0; k < depth; ++k)
        if (row[k] != 0 && column[k] != 0)
            largest = std::max(largest, std::max(std::fabs(row[k]), LEAST_NORMAL) * std::max(std::fabs(column[k]), LEAST_NORMAL));
    return largest;
}

// One element of d, and the products of a step. `subnormal`: of float16, whether a factor may be.
template <int input, u32 depth>
static void add_products(const Multiply& m, u32 at, const double (&row)[depth], const double (&column)[depth],
                         bool subnormal) {
    if constexpr (input == S8) {
        u32 sum = m.accumulate ? static_cast<const u32*>(m.d)[at] : 0;  // modulo 2^32
        for (u32 k = 0; k < depth; ++k) sum += static_cast<u32>(static_cast<int>(row[k] * column[k]));
        static_cast<u32*>(m.d)[at] = sum;
    } else {
        double addends[depth + 1];
        for (u32 k = 0; k < depth; ++k) addends[k] = row[k] * column[k];
        addends[depth] = m.accumulate ? static_cast<const float*>(m.d)[at] : 0.0f;
        static_cast<float*>(m.d)[at] =
            simt::added<(input > TF32) ? 13 : 25>(addends, subnormal ? aligned_magnitude(row, column) : 0.0);
    }
}

template <int input, int input_b = input>
static void perform(const Multiply& m) {
    constexpr u32 depth = DEPTH<input>;
    Block& block = here();
    const u32 t = me().thread % 128;
    double column[depth], rows[2][depth];
    bool subnormal[2] = {};
    if (m.fragment && memcmp(m.fragment, me().fragments[m.number % FRAGMENTS], 16))
        fail("a fragment has changed before wgmma read it");
    for (u32 h = 0; h < 2; ++h) {
        if (!m.fragment) subnormal[h] = read_line<input>(block, m.a, m.a_mn, 16 * (t / 32) + t % 32 / 4 + 8 * h, rows[h]);
        for (u32 k = 0; k < depth && m.fragment; ++k) rows[h][k] = fragment_element<input>(m, h, k);
        for (u32 k = 0; k < depth && m.fragment && input == F16; ++k)
            subnormal[h] |= rows[h][k] != 0 && std::fabs(rows[h][k]) < LEAST_NORMAL;
    }
    for (u32 j = 0; j < m.n / 8; ++j)
        for (u32 e = 0; e < 2; ++e) {
            const bool in_column = read_line<input_b>(block, m.b, m.b_mn, 8 * j + 2 * (t % 4) + e, column);
            for (u32 h = 0; h < 2; ++h)
                add_products<input>(m, 4 * j + 2 * h + e, rows[h], column, subnormal[h] || in_column);
        }
}

// By the numbers in config.cuh.
static void perform(const Multiply& m) {
    switch (m.input) {
        case 0: case 3: case 5: return perform<BF16>(m);
        case 1: return perform<F16>(m);
        case 2: return perform<TF32>(m);
        case 6: return perform<E4M3>(m);
        case 7: return perform<E4M3, E5M2>(m);
        case 8: return perform<E5M2, E4M3>(m);
        case 9: return perform<E5M2>(m);
        case 10: return perform<S8>(m);
        default: fail("an input that wgmma does not multiply");
    }
}

void multiply(void* d, u32 n, u64 a, u64 b, bool a_mn, bool b_mn, int input, int accumulate) {
    for (u64 x : {a, b})
        if ((x >> 62 != 1 && x >> 62 != 2) || (x >> 49 & 7)) fail("a descriptor without a swizzle of 128 or 64 bytes");
    if (!me().fenced) fail("wgmma without a fence since its registers were written, or exposed by a wait");
    me().multiplies.add({d, n, a, b, a_mn, b_mn, input, accumulate, nullptr, 0});
}

void multiply(void* d, u32 n, const u32 (&a)[4], u64 b, bool b_mn, int input, int accumulate) {
    multiply(d, n, b, b, false, b_mn, input, accumulate);
    Fiber& f = me();
    f.multiplies.newest().fragment = a, f.multiplies.newest().number = f.fragment;
    memcpy(f.fragments[f.fragment++ % FRAGMENTS], a, 16);
}

void wait_multiplies(u32 open) {
    Fiber& f = me();
    const u32 committed = u32(f.multiplies.committed());
    if (committed > f.exposed + open) f.exposed = committed - open, f.fenced = false;
    if (!f.multiplies.empty() && f.multiplies.newest().fragment) warp_meet();  // all lanes have given theirs
    f.multiplies.finish(open, [](const Multiply& m) { perform(m); }, machine->eager);
    warp_meet();
}

}  // namespace emulator
