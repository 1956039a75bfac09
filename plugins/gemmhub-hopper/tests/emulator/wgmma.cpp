// wgmma: operands by descriptors or from registers, read late, and added as tensor cores do.
#include "machine.hpp"

namespace emulator {

static float element(const void* at, int input) {
    if (input == 2) return read_as<float>(at);
    const u16 bits = read_as<u16>(at);
    return input == 1 ? from_f16(bits) : from_bf16(bits);
}

static float element(Block& block, u32 address, u32 swizzle, int input) {
    return element(shared_at(block, swizzle_of(address, swizzle)), input);
}

// The swizzle that the descriptor says, in bytes.
static u32 swizzle_of(u64 d) { return 256 >> (d >> 62); }

// Address of element `i` along m (n) and `k` of one wgmma step, by the fields of the descriptor.
static u32 operand_address(u64 d, bool mn, u32 i, u32 k, u32 size) {
    const u32 begin = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
    // The field has 18 bits of the address; shared memory begins at a multiple of that.
    return WINDOW + (mn ? begin + i / 64 * leading + i % 64 * size + k / 8 * stride + k % 8 * 128
                        : begin + i / 8 * stride + i % 8 * swizzle_of(d) + k * size);
}

// As tensor cores add: all numbers aligned to the largest, with two bits more than float32 has, and what hangs over cut
// off; the sum truncated.
static float added(const double* x, u32 count) {
    double largest = 0, plain = 0;
    for (u32 i = 0; i < count; ++i) plain += x[i], largest = std::max(largest, std::fabs(x[i]));
    if (!std::isfinite(plain) || largest == 0) return float(plain);
    u64 bits;
    memcpy(&bits, &largest, 8);
    const double unit = std::ldexp(1.0, int(bits >> 52) - 1023 - 25), inverse = 1 / unit;
    long long sum = 0;
    for (u32 i = 0; i < count; ++i) sum += (long long)(x[i] * inverse);
    const double exact = double(sum) * unit;
    const float rounded = float(exact);
    return std::fabs(rounded) > std::fabs(exact) && std::isfinite(rounded) ? std::nextafter(rounded, 0.0f) : rounded;
}

// Element (lane / 4 + 8 h, k) of a fragment: four lanes have those of a row.
static float fragment_element(const Multiply& m, u32 h, u32 k) {
    const u32 wide = m.input == 2 ? 1 : 2;  // elements of a register
    const u32 lane = me().thread % 32, other = lane / 4 * 4 + k / wide % 4;
    const u32* registers = (machine->current - lane + other)->fragments[m.number % FRAGMENTS];
    return element(reinterpret_cast<const u16*>(&registers[2 * (k / wide / 4) + h]) + k % wide, m.input);
}

static void perform(const Multiply& m) {
    Block& block = here();
    const u32 t = me().thread % 128, size = m.input == 2 ? 4 : 2, depth = 32 / size;
    const u32 swizzle_a = swizzle_of(m.a), swizzle_b = swizzle_of(m.b);
    double column[16], rows[2][16];
    if (m.fragment && memcmp(m.fragment, me().fragments[m.number % FRAGMENTS], 16))
        fail("a fragment has changed before wgmma read it");
    for (u32 h = 0; h < 2; ++h)
        for (u32 k = 0; k < depth; ++k)
            rows[h][k] = m.fragment ? fragment_element(m, h, k)
                                    : element(block,
                                              operand_address(m.a, m.a_mn, 16 * (t / 32) + t % 32 / 4 + 8 * h, k, size),
                                              swizzle_a, m.input);
    for (u32 j = 0; j < m.n / 8; ++j)
        for (u32 e = 0; e < 2; ++e) {
            const u32 n = 8 * j + 2 * (t % 4) + e;
            for (u32 k = 0; k < depth; ++k)
                column[k] = element(block, operand_address(m.b, m.b_mn, n, k, size), swizzle_b, m.input);
            for (u32 h = 0; h < 2; ++h) {
                double addends[17];
                for (u32 k = 0; k < depth; ++k) addends[k] = rows[h][k] * column[k];
                addends[depth] = m.accumulate ? m.d[4 * j + 2 * h + e] : 0.0f;
                m.d[4 * j + 2 * h + e] = added(addends, depth + 1);
            }
        }
}

void multiply(float* d, u32 n, u64 a, u64 b, bool a_mn, bool b_mn, int input, int accumulate) {
    for (u64 x : {a, b})
        if ((x >> 62 != 1 && x >> 62 != 2) || (x >> 49 & 7)) fail("a descriptor without a swizzle of 128 or 64 bytes");
    if (!me().fenced) fail("wgmma without a fence since its registers were written, or exposed by a wait");
    me().multiplies.add({d, n, a, b, a_mn, b_mn, input, accumulate, nullptr, 0});
}

void multiply(float* d, u32 n, const u32 (&a)[4], u64 b, bool b_mn, int input, int accumulate) {
    multiply(d, n, b, b, false, b_mn, input, accumulate);
    Fiber& f = me();
    f.multiplies.newest().fragment = a, f.multiplies.newest().number = f.fragment;
    memcpy(f.fragments[f.fragment++ % FRAGMENTS], a, 16);
}

void finish_multiplies(u32 open) {
    Fiber& f = me();
    const u32 committed = u32(f.multiplies.committed());
    if (committed > f.exposed + open) f.exposed = committed - open, f.fenced = false;
    if (!f.multiplies.empty() && f.multiplies.newest().fragment) warp_meet();  // all lanes have given theirs
    f.multiplies.finish(open, [](const Multiply& m) { perform(m); }, machine->eager);
}

}  // namespace emulator
