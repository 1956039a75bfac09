// Quantization: 8-bit codes q and float32 scales of a matrix x, or of a batch of them, contiguous along its rows.
//
// A group of elements shares a scale: its largest magnitude over the largest number of the codes. A kernel is one STEP:
//
//     0 BLOCKS     a CTA reads a tile that holds whole groups into registers, and writes scales and codes
//     1 ROWS       TEAM threads read a row, of which they keep HELD runs each; a longer row's end is read twice
//     2 MAXIMA     the largest magnitude of each part of groups that are larger than a tile: all of x, or a column
//     3 CONVERT    after it: scales from the maxima, and codes; it begins where MAXIMA ended, which is in the cache
//     4 GIVEN      codes by scales that are there
//
// A tile has TILE_ROWS x 128 elements: a row of it takes LANES threads, with a run of 16 bytes each.
//
//     GROUP_ROWS, GROUP_COLUMNS   of a group: 1; 128, the last ones fewer; 0, all
//     THREADS, CTAS               of a CTA; CTAs for which an SM must have room
//
// Grid: x alone. BLOCKS: a CTA for each tile; ROWS: a CTA for THREADS / TEAM rows; MAXIMA and CONVERT of columns: `parts`
// CTAs for each column of tiles; of all of x, and GIVEN: any number. gemmhub_cuda/quantize.py has the same structure.
#include "narrow.cuh"

struct Params {
    const void* x;
    void* q;
    float* scale;
    u32* maxima;                                         // MAXIMA writes them, CONVERT reads them
    long long x_ld, q_ld, x_batch, q_batch;              // elements from row to row, from matrix to matrix
    long long scale_row, scale_column, scale_batch;      // elements from group to group, from matrix to matrix
    int rows, columns;                                   // of one matrix
    int last;                                            // columns of the last row: fewer, where x is flat
    int batch;                                           // matrices
    int tiles_m, tiles_n;                                // of one matrix
    int parts;                                           // of a column of tiles; of all of x: the maxima
    int wide;                                            // 1: 16 bytes of x, and their codes, may be moved at once
};
static_assert(sizeof(Params) == 120, "as the host has it");

enum { BLOCKS, ROWS, MAXIMA, CONVERT, GIVEN };

constexpr int TILE_COLUMNS = 128, LANES = TILE_COLUMNS / PER, LINES = THREADS / LANES;
constexpr int RUNS = TILE_ROWS / LINES;  // of a thread
constexpr bool BY_COLUMN = GROUP_COLUMNS == 1;
static_assert(TILE_ROWS % LINES == 0 && 128 % TILE_ROWS == 0, "a group of 128 rows has whole tiles");
static_assert(STEP != BLOCKS || GROUP_ROWS == 1 || GROUP_ROWS == TILE_ROWS, "a tile has whole groups");
static_assert(SHARED_BYTES >= (STEP == ROWS ? THREADS / 8 : 4 * TILE_COLUMNS * LINES), "what block_max and columns_max need");

// The part of a tile that one thread has: runs of one column of runs, LINES rows apart.
struct Part {
    const Params& p;
    long long x, q, scale;  // offsets of the matrix
    int row, column;

    DEVICE Part(const Params& p, int matrix, int tile_m, int tile_n)
        : p(p), x(matrix * p.x_batch), q(matrix * p.q_batch), scale(matrix * p.scale_batch),
          row(tile_m * TILE_ROWS + threadIdx.x / LANES), column(tile_n * TILE_COLUMNS + threadIdx.x % LANES * PER) {}

    DEVICE int row_of(int i) const { return row + i * LINES; }

    // Elements of run `i` that are there: PER or more for all.
    DEVICE int valid(int i) const {
        const int end = row_of(i) < p.rows - 1 ? p.columns : row_of(i) < p.rows ? p.last : 0;
        return end - column;
    }

    DEVICE Run load(int i) const { return load_run(p.x, x + row_of(i) * p.x_ld + column, valid(i), p.wide); }

    DEVICE void load(Run (&runs)[RUNS]) const {
#pragma unroll
        for (int i = 0; i < RUNS; ++i) runs[i] = load(i);
    }

    DEVICE void store(int i, const Codes& codes) const {
        store_codes(p.q, q + row_of(i) * p.q_ld + column, valid(i), p.wide, codes);
    }

    // The scale of the group of an element.
    DEVICE float* scale_at(int row, int column) const {
        const int m = GROUP_ROWS == 1 ? row : GROUP_ROWS == 128 ? row / 128 : 0;
        const int n = GROUP_COLUMNS == 1 ? column : GROUP_COLUMNS == 128 ? column / 128 : 0;
        return p.scale + scale + m * p.scale_row + n * p.scale_column;
    }
};

// --- largest magnitudes of several threads ---------------------------------------------------------------------

DEVICE u32 block_max(u32 value) {
    const u32 warp_max = max_of_lanes<32>(value), base = dynamic_shared();
    const u32 to = base + 4 * warp_id();  // all lanes take part in warp_id
    if (lane_id() == 0) store_shared(to, warp_max);
    block_sync();
    u32 all = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) all = larger(all, load_shared<u32>(base + 4 * warp));
    return all;
}

// Of `lines` lines of 128 columns in shared memory; each thread gets those of its own run.
DEVICE void columns_max(u32 (&largest)[PER], int lines) {
    const u32 base = dynamic_shared(), column = threadIdx.x;
    block_sync();
    if (column < TILE_COLUMNS) {
        u32 all = 0;
        for (int line = 0; line < lines; ++line)
            all = larger(all, load_shared<u32>(base + 4 * (line * TILE_COLUMNS + column)));
        store_shared(base + 4 * column, all);
    }
    block_sync();
#pragma unroll
    for (int i = 0; i < PER; i += 4) {
        const Word4 four = load_shared<Word4>(base + 4 * (threadIdx.x % LANES * PER + i));
        largest[i] = four.x, largest[i + 1] = four.y, largest[i + 2] = four.z, largest[i + 3] = four.w;
    }
}

// Of the columns of a tile, whose rows the threads have.
DEVICE void columns_max(u32 (&largest)[PER]) {
    const u32 line = dynamic_shared() + 4 * (threadIdx.x / LANES * TILE_COLUMNS + threadIdx.x % LANES * PER);
#pragma unroll
    for (int i = 0; i < PER; i += 4)
        store_shared(line + 4 * i, Word4{largest[i], largest[i + 1], largest[i + 2], largest[i + 3]});
    columns_max(largest, LINES);
}

DEVICE void add_columns(u32 (&largest)[PER], const Run& run) {
#pragma unroll
    for (int i = 0; i < PER; ++i) largest[i] = larger(largest[i], magnitude(element(run, i)));
}

// --- scales and codes of a part --------------------------------------------------------------------------------

// Divisors of the columns of a run.
struct Divisors {
    Divisor each[PER];

    DEVICE explicit Divisors(const u32 (&largest)[PER]) {
#pragma unroll
        for (int i = 0; i < PER; ++i) each[i] = Divisor(scale_of(largest[i]));
    }

    DEVICE explicit Divisors(const Part& part) {
#pragma unroll
        for (int i = 0; i < PER; ++i)
            each[i] = Divisor(part.column + i < part.p.columns ? load_global(part.scale_at(part.row, part.column + i)) : 1);
    }

    DEVICE void store(const Part& part, const Run (&runs)[RUNS]) const {
#pragma unroll
        for (int i = 0; i < RUNS; ++i) part.store(i, codes_of(runs[i], [&](int e) { return each[e]; }));
    }
};

DEVICE void store_scales(const Part& part, const u32 (&largest)[PER]) {
    if (threadIdx.x >= LANES) return;
#pragma unroll
    for (int i = 0; i < PER; ++i)
        if (part.column + i < part.p.columns)
            store_global(part.scale_at(part.row, part.column + i), scale_of(largest[i]));
}

DEVICE void store(const Part& part, const Run (&runs)[RUNS], const Divisor& divisor) {
#pragma unroll
    for (int i = 0; i < RUNS; ++i) part.store(i, codes_of(runs[i], [&](int) { return divisor; }));
}

// --- steps -----------------------------------------------------------------------------------------------------

// Calls `visit` with the part of each tile of this CTA: of all tiles, along rows first; or of `parts` CTAs of a column
// of tiles. `last_first`: the other way around.
template <bool last_first, class Visit>
DEVICE void for_each_tile(const Params& p, Visit visit) {
    if constexpr (BY_COLUMN && (STEP == MAXIMA || STEP == CONVERT)) {
        const int block = last_first ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
        const int column = block / p.parts, matrix = column / p.tiles_n;
        for (int tile = block % p.parts; tile < p.tiles_m; tile += p.parts)
            visit(Part(p, matrix, last_first ? p.tiles_m - 1 - tile : tile, column % p.tiles_n));
    } else {
        const int tiles = p.batch * p.tiles_m * p.tiles_n;
        for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
            const int tile = last_first ? tiles - 1 - i : i, row = tile / p.tiles_n;
            visit(Part(p, row / p.tiles_m, row % p.tiles_m, tile % p.tiles_n));
        }
    }
}

DEVICE void blocks(const Params& p) {
    for_each_tile<false>(p, [](const Part& part) {
        Run runs[RUNS];
        part.load(runs);
        if constexpr (GROUP_ROWS == 1) {
#pragma unroll
            for (int i = 0; i < RUNS; ++i) {
                const float scale = scale_of(max_of_lanes<LANES>(magnitude(runs[i])));
                const Divisor divisor(scale);
                part.store(i, codes_of(runs[i], [&](int) { return divisor; }));
                if (threadIdx.x % LANES == 0 && part.valid(i) > 0)
                    store_global(part.scale_at(part.row_of(i), part.column), scale);
            }
        } else if constexpr (BY_COLUMN) {
            u32 largest[PER] = {};
#pragma unroll
            for (int i = 0; i < RUNS; ++i) add_columns(largest, runs[i]);
            columns_max(largest);
            store_scales(part, largest);
            const Divisors divisors(largest);
            divisors.store(part, runs);
        } else {
            u32 largest = 0;
#pragma unroll
            for (int i = 0; i < RUNS; ++i) largest = larger(largest, magnitude(runs[i]));
            const float scale = scale_of(block_max(largest));
            if (threadIdx.x == 0) store_global(part.scale_at(part.row, part.column), scale);
            store(part, runs, Divisor(scale));
        }
    });
}

DEVICE void rows(const Params& p) {
    static_assert(TEAM == 32 || TEAM == THREADS, "a warp, or the CTA");
    const int number = blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM, matrix = number / p.rows;
    const int row = number % p.rows, first = threadIdx.x % TEAM * PER;
    const int columns = matrix < p.batch ? p.columns : 0;
    const long long x = matrix * p.x_batch + row * p.x_ld, q = matrix * p.q_batch + row * p.q_ld;

    Run held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int column = first + i * TEAM * PER;
        held[i] = load_run(p.x, x + column, columns - column, p.wide);
    }
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < HELD; ++i) largest = larger(largest, magnitude(held[i]));
#pragma unroll 4
    for (int column = first + HELD * TEAM * PER; column < columns; column += TEAM * PER)
        largest = larger(largest, magnitude(load_run(p.x, x + column, columns - column, p.wide)));

    const float scale = scale_of(TEAM == 32 ? max_of_lanes<32>(largest) : block_max(largest));
    const Divisor divisor(scale);
    auto store = [&](int column, const Run& run) {
        store_codes(p.q, q + column, columns - column, p.wide, codes_of(run, [&](int) { return divisor; }));
    };
    if (first == 0 && columns > 0) store_global(p.scale + matrix * p.scale_batch + row * p.scale_row, scale);
#pragma unroll
    for (int i = 0; i < HELD; ++i) store(first + i * TEAM * PER, held[i]);
#pragma unroll 4
    for (int column = first + HELD * TEAM * PER; column < columns; column += TEAM * PER)
        store(column, load_run(p.x, x + column, columns - column, p.wide));
}

DEVICE void maxima(const Params& p) {
    u32 largest[PER] = {};
    for_each_tile<false>(p, [&](const Part& part) {
        Run runs[RUNS];
        part.load(runs);
#pragma unroll
        for (int i = 0; i < RUNS; ++i) add_columns(largest, runs[i]);
    });
    if constexpr (BY_COLUMN) {
        columns_max(largest);
        if (threadIdx.x < LANES) {
            u32* to = p.maxima + blockIdx.x * static_cast<long long>(TILE_COLUMNS) + threadIdx.x * PER;
#pragma unroll
            for (int i = 0; i < PER; i += 4)
                store_global(reinterpret_cast<Word4*>(to + i), {largest[i], largest[i + 1], largest[i + 2], largest[i + 3]});
        }
    } else {
        u32 all = 0;
#pragma unroll
        for (int i = 0; i < PER; ++i) all = larger(all, largest[i]);
        all = block_max(all);
        if (threadIdx.x == 0) store_global(p.maxima + blockIdx.x, all);
    }
}

DEVICE void convert(const Params& p) {
    if constexpr (BY_COLUMN) {
        const int block = gridDim.x - 1 - blockIdx.x, column = block / p.parts;
        constexpr int SOME = THREADS / TILE_COLUMNS;  // maxima of a column at once
        const u32* from = p.maxima + static_cast<long long>(column) * p.parts * TILE_COLUMNS + threadIdx.x % TILE_COLUMNS;
        u32 own = 0, largest[PER];
#pragma unroll 4
        for (int part = threadIdx.x / TILE_COLUMNS; part < p.parts; part += SOME)
            own = larger(own, load_global(from + part * TILE_COLUMNS));
        store_shared(dynamic_shared() + 4 * threadIdx.x, own);
        columns_max(largest, SOME);
        const Divisors divisors(largest);
        if (block % p.parts == 0) store_scales(Part(p, column / p.tiles_n, 0, column % p.tiles_n), largest);
        for_each_tile<true>(p, [&](const Part& part) {
            Run runs[RUNS];
            part.load(runs);
            divisors.store(part, runs);
        });
    } else {
        u32 own = 0;
        for (int i = threadIdx.x; i < p.parts; i += THREADS) own = larger(own, load_global(p.maxima + i));
        const float scale = scale_of(block_max(own));
        const Divisor divisor(scale);
        if (blockIdx.x == 0 && threadIdx.x == 0) store_global(p.scale, scale);
        for_each_tile<true>(p, [&](const Part& part) {
            Run runs[RUNS];
            part.load(runs);
            store(part, runs, divisor);
        });
    }
}

DEVICE void given(const Params& p) {
    for_each_tile<false>(p, [](const Part& part) {
        Run runs[RUNS];
        part.load(runs);
        if constexpr (BY_COLUMN) {
            const Divisors divisors(part);  // the rows of a tile are of one group
            divisors.store(part, runs);
        } else if constexpr (GROUP_ROWS == 1) {
#pragma unroll
            for (int i = 0; i < RUNS; ++i) {
                const float scale = part.valid(i) > 0 ? load_global(part.scale_at(part.row_of(i), part.column)) : 1.0f;
                const Divisor divisor(scale);
                part.store(i, codes_of(runs[i], [&](int) { return divisor; }));
            }
        } else {
            const float scale = part.valid(0) > 0 ? load_global(part.scale_at(part.row, part.column)) : 1.0f;
            store(part, runs, Divisor(scale));
        }
    });
}

GLOBAL_KERNEL void __launch_bounds__(THREADS, CTAS) quantize(const __grid_constant__ Params p) {
    if constexpr (STEP == BLOCKS) blocks(p);
    if constexpr (STEP == ROWS) rows(p);
    if constexpr (STEP == MAXIMA) maxima(p);
    if constexpr (STEP == CONVERT) convert(p);
    if constexpr (STEP == GIVEN) given(p);
}
