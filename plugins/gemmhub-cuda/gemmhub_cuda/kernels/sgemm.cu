// d = activation(alpha * a b + beta * c + bias) in float32 without tensor cores: one rounding for each multiply-add.
//
// A CTA computes a tile of TILE_M x TILE_N, a warp WARP_M x WARP_N of it, a thread MS x NS runs of 4 x 4: as outer
// products of a column of a and a row of b. What one step of k needs is moved as follows:
//
//     global memory   load_global, TILE_K of k at a time, while the tile before is multiplied      `staged`
//     registers       store_shared, a and b both contiguous along m (n): [k][m], [k][n]            two stages
//     shared memory   load_shared, 16 bytes at a time, while the step before is multiplied         `fragment`
//     registers       MS x NS x 16 fused multiply-adds
//
// So there are two of everything, one barrier for each TILE_K, and nothing but loads and multiply-adds in the steps.
//
// The part of k that is no multiple of TILE_K is taken first, with zeros beyond its end: every later load is of full
// tiles. Rows beyond m (columns beyond n) read the last one that there is; their results are not stored.
//
//     TILE_M, TILE_N, TILE_K, WARP_M, WARP_N   elements
//     BLOCKS                                   CTAs for which an SM must have room
#include "epilogue.cuh"
#include "split.cuh"

constexpr int LANES_N = WARP_N >= 32 ? 8 : 4, LANES_M = 32 / LANES_N;  // of a warp, below and beside each other
constexpr int MS = WARP_M / LANES_M / 4, NS = WARP_N / LANES_N / 4;    // runs of 4 that a thread has along m and n
static_assert(THREADS == 32 * (TILE_M / WARP_M) * (TILE_N / WARP_N), "warps fill the tile");
static_assert(INPUT == 2 && TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0 && MS > 0 && NS > 0);

// How an operand's tile (SIDE along m or n, TILE_K along k) comes from memory to [k][SIDE]. `mn`: it is contiguous along
// m (n), not along k; `aligned`: its alignment in bytes.
template <int SIDE, bool mn, int aligned>
struct Loader {
    static constexpr int WIDE = aligned >= 16 ? 4 : aligned >= 8 ? 2 : 1;  // elements a load
    static constexpr int INNER = (mn ? SIDE : TILE_K) / WIDE;              // loads for a contiguous row
    static constexpr int ALL = SIDE * TILE_K / WIDE;
    static constexpr int LOADS = (ALL + THREADS - 1) / THREADS;  // of a thread

    // Where an operand that is contiguous along k is transposed, a warp stores to rows that are 4 k apart: 4 elements a
    // row more than a multiple of the 32 banks, and 8 more for every 8 rows, keep those in different banks.
    static constexpr int ROW = SIDE + (mn ? 0 : 4);
    DEVICE static constexpr int at(int k) { return k * ROW + (mn ? 0 : k / 8 * 8); }
    static constexpr u32 BYTES = 4 * (at(TILE_K - 1) + ROW);

    const float* tile;  // of global memory
    long long step;     // from one tile to the next
    int offset[LOADS];  // of this thread's loads from `tile`
    float staged[LOADS][WIDE];

    DEVICE static bool mine(int i) { return ALL % THREADS == 0 || i * THREADS + static_cast<int>(threadIdx.x) < ALL; }
    DEVICE static int inner(int i) { return (i * THREADS + threadIdx.x) % INNER * WIDE; }
    DEVICE static int outer(int i) { return (i * THREADS + threadIdx.x) / INNER; }

    // `first`: the tile's origin along m (n), of which there are `size`; `k`: where its part of k begins.
    DEVICE Loader(const void* base, long long ld, int first, int size, int k) {
        tile = static_cast<const float*>(base) + (mn ? first + k * ld : first * ld + k);
        step = mn ? TILE_K * ld : TILE_K;
        const int last = size - first - (mn ? WIDE : 1);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int side = mn ? inner(i) : outer(i), clamped = side < last ? side : last;
            offset[i] = mn ? static_cast<int>(outer(i) * ld) + clamped : static_cast<int>(clamped * ld) + inner(i);
        }
    }

    // Fetches the tile that is `tiles` further on, of which `deep` along k are there.
    DEVICE void fetch_part(int tiles, int deep) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
                const int k = mn ? outer(i) : inner(i) + j;
                staged[i][j] = mine(i) && k < deep ? load_global(tile + tiles * step + offset[i] + j) : 0.0f;
            }
        }
    }

    // Fetches a full tile, and goes on to the next.
    DEVICE void fetch() {
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (mine(i)) load(tile + offset[i], staged[i]);
        tile += step;
    }

    // Stores what was fetched to a stage of shared memory.
    DEVICE void store(u32 stage) const {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            if (!mine(i)) continue;
            if constexpr (mn) {
                put(stage + 4 * (at(outer(i)) + inner(i)), staged[i]);
            } else {
#pragma unroll
                for (int j = 0; j < WIDE; ++j)
                    store_shared(stage + 4 * (at(inner(i)) + j * ROW + outer(i)), staged[i][j]);
            }
        }
    }

   private:
    DEVICE static void load(const float* from, float (&v)[1]) { v[0] = load_global(from); }
    DEVICE static void load(const float* from, float (&v)[2]) {
        const Word2 both = load_global(reinterpret_cast<const Word2*>(from));
        v[0] = __uint_as_float(both.x), v[1] = __uint_as_float(both.y);
    }
    DEVICE static void load(const float* from, float (&v)[4]) {
        const Float4 all = load_global(reinterpret_cast<const Float4*>(from));
        v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
    }
    DEVICE static void put(u32 to, const float (&v)[1]) { store_shared(to, v[0]); }
    DEVICE static void put(u32 to, const float (&v)[2]) {
        store_shared(to, Word2{__float_as_uint(v[0]), __float_as_uint(v[1])});
    }
    DEVICE static void put(u32 to, const float (&v)[4]) { store_shared(to, Float4{v[0], v[1], v[2], v[3]}); }
};

using LoaderA = Loader<TILE_M, A_M_MAJOR, A_BYTES_ALIGNED>;
using LoaderB = Loader<TILE_N, B_N_MAJOR, B_BYTES_ALIGNED>;

constexpr u32 STAGE = LoaderA::BYTES + LoaderB::BYTES;
static_assert(SHARED_BYTES == 2 * STAGE && LoaderA::BYTES % 16 == 0 && STAGE % 16 == 0, "so counts sgemm.py");

// A thread's part of one step of k.
struct Fragment {
    float a[MS][4], b[NS][4];

    // `a_at`, `b_at`: shared addresses of the thread's first elements.
    DEVICE void load(u32 a_at, u32 b_at, int k) {
#pragma unroll
        for (int i = 0; i < MS; ++i) fill(a[i], a_at + 4 * (LoaderA::at(k) + i * LANES_M * 4));
#pragma unroll
        for (int j = 0; j < NS; ++j) fill(b[j], b_at + 4 * (LoaderB::at(k) + j * LANES_N * 4));
    }

    DEVICE static void fill(float (&v)[4], u32 from) {
        const Float4 all = load_shared<Float4>(from);
        v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
    }
};

// Sums are [i][row][j][column]: runs of 4 along n are contiguous.
constexpr int SUMS = MS * NS * 16;

DEVICE void multiply(float (&sums)[SUMS], const Fragment& f) {
#pragma unroll
    for (int i = 0; i < MS; ++i)
#pragma unroll
        for (int row = 0; row < 4; ++row)
#pragma unroll
            for (int j = 0; j < NS; ++j)
#pragma unroll
                for (int column = 0; column < 4; ++column) {
                    float& sum = sums[((i * 4 + row) * NS + j) * 4 + column];
                    sum += f.a[i][row] * f.b[j][column];
                }
}

// The origin in the tile of a thread's sums.
struct ThreadTile {
    int row, column;

    // Lanes 1 apart read the same of a, lanes 2 apart the same of b: so half a warp is served at once.
    DEVICE explicit ThreadTile(int thread) {
        const int warp = thread / 32, lane = thread % 32;
        const int m = LANES_N == 8 ? (lane >> 1 & 1) | (lane >> 3 & 2) : (lane >> 1 & 1) | (lane >> 2 & 6);
        const int n = LANES_N == 8 ? (lane & 1) | (lane >> 1 & 6) : (lane & 1) | (lane >> 1 & 2);
        row = warp / (TILE_N / WARP_N) * WARP_M + 4 * m;
        column = warp % (TILE_N / WARP_N) * WARP_N + 4 * n;
    }
};

GLOBAL_KERNEL void __launch_bounds__(THREADS, BLOCKS) gemm(const __grid_constant__ Params p) {
    const Piece piece = piece_here(p);
    const u32 shared = dynamic_shared();
    const ThreadTile origin(threadIdx.x);
    const long long matrix = blockIdx.z;
    LoaderA a(static_cast<const float*>(p.a) + matrix * p.a_batch, p.a_ld, piece.row, p.m, piece.k_begin);
    LoaderB b(static_cast<const float*>(p.b) + matrix * p.b_batch, p.b_ld, piece.column, p.n, piece.k_begin);

    float sums[SUMS] = {};
    Fragment fragment[2];
    // `rest` tiles are full and come after the first one, which is the last along k.
    const int deep = piece.k_end - piece.k_begin, rest = deep > 0 ? (deep - 1) / TILE_K : 0;
    a.fetch_part(rest, deep - rest * TILE_K);
    b.fetch_part(rest, deep - rest * TILE_K);
    u32 stage = shared;  // the one that is read
    a.store(stage);
    b.store(stage + LoaderA::BYTES);
    block_sync();
    u32 a_at = stage + 4 * origin.row, b_at = stage + LoaderA::BYTES + 4 * origin.column;
    fragment[0].load(a_at, b_at, 0);

#pragma unroll 1
    for (int tile = 0; tile < rest; ++tile) {
        a.fetch();
        b.fetch();
#pragma unroll
        for (int k = 0; k < TILE_K - 1; ++k) {
            fragment[(k + 1) % 2].load(a_at, b_at, k + 1);
            multiply(sums, fragment[k % 2]);
        }
        stage = 2 * shared + STAGE - stage;  // the other one: it was last read before the last barrier
        a.store(stage);
        b.store(stage + LoaderA::BYTES);
        block_sync();
        a_at = stage + 4 * origin.row, b_at = stage + LoaderA::BYTES + 4 * origin.column;
        fragment[0].load(a_at, b_at, 0);
        multiply(sums, fragment[1]);
    }
#pragma unroll
    for (int k = 0; k < TILE_K; ++k) {
        if (k + 1 < TILE_K) fragment[(k + 1) % 2].load(a_at, b_at, k + 1);
        multiply(sums, fragment[k % 2]);
    }

    // Computed once more: the loop has no registers to spare for what only the end needs.
    const Piece same = piece_at(p, opaque(blockIdx.x));
    if constexpr (SPLIT) {
        if (p.splits > 1 && !add_parts(p, same, sums, shared)) return;
    }
    const Result result(p, 4);
    const ThreadTile corner(opaque(threadIdx.x));
    const int row = same.row + corner.row, column = same.column + corner.column;
#pragma unroll
    for (int i = 0; i < MS; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int j = 0; j < NS; ++j) {
                const float(&run)[4] = *reinterpret_cast<const float(*)[4]>(&sums[((i * 4 + r) * NS + j) * 4]);
                result.store(row + i * LANES_M * 4 + r, column + j * LANES_N * 4, run);
            }
}
