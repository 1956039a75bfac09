// What the lanes of a warp do together: exchange values, ldmatrix, and mma on tensor cores.
#include "launch.hpp"
#include "simt/tensor_cores.hpp"

namespace emulator {

struct Matrices {
    u32* word;
    u32 row;
};

static void load_warp_matrices(void** lanes, bool transposed, Where where) {
    u16 element[4][8][8];
    for (u32 q = 0; q < 4; ++q) {
        std::vector<u32> rows(8);
        for (u32 r = 0; r < 8; ++r) {
            rows[r] = static_cast<Matrices*>(lanes[8 * q + r])->row;
            memcpy(element[q][r], &here().shared[rows[r] - WINDOW], 16);
        }
        if (machine->count) count_request(where, rows, 16);
    }
    for (u32 lane = 0; lane < 32; ++lane)
        for (u32 q = 0; q < 4; ++q) {
            const u32 i = lane / 4, j = 2 * (lane % 4);
            const u32 low = transposed ? element[q][j][i] : element[q][i][j];
            const u32 high = transposed ? element[q][j + 1][i] : element[q][i][j + 1];
            static_cast<Matrices*>(lanes[lane])->word[q] = low | high << 16;
        }
}

struct Multiply {
    float* d;
    u32 a[4], b[2];
};

static float* wide_table(int type) {
    static std::vector<float> tables[2];
    std::vector<float>& table = tables[type];
    if (table.empty()) {
        table.resize(65536);
        for (u32 bits = 0; bits < 65536; ++bits) table[bits] = type == 0 ? from_bf16(u16(bits)) : from_f16(u16(bits));
    }
    return table.data();
}

static void multiply_warp(void** lanes, int type) {
    const float* wide = wide_table(type);
    float a[16][16], b[8][16];
    for (u32 lane = 0; lane < 32; ++lane) {
        const Multiply& m = *static_cast<Multiply*>(lanes[lane]);
        const u32 g = lane / 4, t = 2 * (lane % 4);
        for (u32 e = 0; e < 2; ++e) {
            for (u32 i = 0; i < 4; ++i) a[g + 8 * (i % 2)][t + 8 * (i / 2) + e] = wide[m.a[i] >> (16 * e) & 0xffff];
            for (u32 i = 0; i < 2; ++i) b[g][t + 8 * i + e] = wide[m.b[i] >> (16 * e) & 0xffff];
        }
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        float* d = static_cast<Multiply*>(lanes[lane])->d;
        for (u32 i = 0; i < 4; ++i) {
            const float* row = a[lane / 4 + 8 * (i / 2)];
            const float* column = b[2 * (lane % 4) + i % 2];
            float sum = 0.0f;
            for (u32 k = 0; k < 16; ++k) sum += row[k] * column[k];
            d[i] += sum;
        }
    }
}

struct MultiplyBytes {
    int* d;
    u32 a[4], b[2];
};

static void multiply_warp_bytes(void** lanes) {
    signed char a[16][32], b[8][32];
    for (u32 lane = 0; lane < 32; ++lane) {
        const MultiplyBytes& m = *static_cast<MultiplyBytes*>(lanes[lane]);
        const u32 g = lane / 4, t = 4 * (lane % 4);
        for (u32 i = 0; i < 4; ++i) memcpy(&a[g + 8 * (i % 2)][t + 16 * (i / 2)], &m.a[i], 4);
        for (u32 i = 0; i < 2; ++i) memcpy(&b[g][t + 16 * i], &m.b[i], 4);
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        int* d = static_cast<MultiplyBytes*>(lanes[lane])->d;
        for (u32 i = 0; i < 4; ++i) {
            const signed char* row = a[lane / 4 + 8 * (i / 2)];
            const signed char* column = b[2 * (lane % 4) + i % 2];
            u32 sum = d[i];
            for (u32 k = 0; k < 32; ++k) sum += row[k] * column[k];
            d[i] = int(sum);
        }
    }
}

struct MultiplyFloat8 {
    float* d;
    u32 a[4], b[2];
};

// As numbered in params.cuh: bit 1 is the format of a, bit 0 that of b; 0 is e4m3.
static double float8_value(unsigned char x, bool e5m2) {
    return e5m2 ? simt::float8_value<false>(x) : simt::float8_value<true>(x);
}

static void multiply_warp_float8(void** lanes, int type) {
    double a[16][32], b[8][32];
    for (u32 lane = 0; lane < 32; ++lane) {
        const MultiplyFloat8& m = *static_cast<MultiplyFloat8*>(lanes[lane]);
        const u32 g = lane / 4, t = 4 * (lane % 4);
        for (u32 e = 0; e < 4; ++e) {
            for (u32 i = 0; i < 4; ++i)
                a[g + 8 * (i % 2)][t + 16 * (i / 2) + e] = float8_value(m.a[i] >> (8 * e) & 0xff, type & 2);
            for (u32 i = 0; i < 2; ++i) b[g][t + 16 * i + e] = float8_value(m.b[i] >> (8 * e) & 0xff, type & 1);
        }
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        float* d = static_cast<MultiplyFloat8*>(lanes[lane])->d;
        for (u32 i = 0; i < 4; ++i) {
            double addends[33];
            for (u32 k = 0; k < 32; ++k) addends[k] = a[lane / 4 + 8 * (i / 2)][k] * b[2 * (lane % 4) + i % 2][k];
            addends[32] = d[i];
            d[i] = simt::added<13>(addends);
        }
    }
}

struct Value {
    u32 own, largest;
};

u32 max_of_lanes(u32 value, u32 lanes, Where where) {
    Value mine = {value, 0};
    warp_meet("max_of_lanes", where, &mine, [&](void** all) {
        for (u32 lane = 0; lane < 32; ++lane)
            for (u32 other = lane / lanes * lanes; other < (lane / lanes + 1) * lanes; ++other) {
                Value& to = *static_cast<Value*>(all[lane]);
                to.largest = std::max(to.largest, static_cast<Value*>(all[other])->own);
            }
    });
    return mine.largest;
}

void load_matrices(u32* word, u32 row, bool transposed, Where where) {
    read_cells(offset_of(row, 16, where), 16, where);
    Matrices mine = {word, row};
    warp_meet("load_matrices", where, &mine, [&](void** lanes) { load_warp_matrices(lanes, transposed, where); });
}

void multiply_add(float* d, const u32* a, u32 b0, u32 b1, int type, Where where) {
    Multiply mine = {d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_meet("multiply_add", where, &mine, [&](void** lanes) { multiply_warp(lanes, type); });
}

void multiply_add_float8(float* d, const u32* a, u32 b0, u32 b1, int type, Where where) {
    MultiplyFloat8 mine = {d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_meet("multiply_add_float8", where, &mine, [&](void** lanes) { multiply_warp_float8(lanes, type); });
}

void multiply_add(int* d, const u32* a, u32 b0, u32 b1, Where where) {
    MultiplyBytes mine = {d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_meet("multiply_add", where, &mine, [&](void** lanes) { multiply_warp_bytes(lanes); });
}

}  // namespace emulator
