"""The arithmetic of addresses, modelled with numpy apart from the kernel's source and from the emulator.

Three layouts meet here: what TMA writes (128-byte swizzle), what a wgmma descriptor reads, and what stmatrix and
ordinary stores of float32 write for TMA to store. Each model below is written from the hardware's description.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.emulator


def tma_box(values, width):
    """Shared memory after TMA wrote a box (rows x elements), swizzled by ``width`` bytes: 16-byte chunk c of row r.

    The pattern repeats every 8 * width bytes; a chunk moves within its row, by the row's number in the pattern.
    """
    rows, inner = values.shape
    itemsize, data = values.itemsize, values.reshape(rows, -1)
    memory = np.zeros(rows * inner * itemsize, np.uint8)
    per_row = inner * itemsize // 16
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(rows, per_row, 16)
    for r in range(rows):
        for c in range(per_row):
            byte = r * inner * itemsize + c * 16
            line = byte // 128 % 8
            moved = byte // 16 ^ (line % (width // 16)) if width > 16 else byte // 16
            memory[16 * moved : 16 * moved + 16] = raw[r, c]
    return memory


def unswizzle(address, span=128):
    """Where wgmma finds the byte that the unswizzled layout has at ``address``."""
    return address ^ (address >> 7 & span // 16 - 1) << 4


def k_major(memory, start, row, k):
    """Element (row, k) of a K-major operand of 16-bit elements: groups of 8 rows are 1024 bytes apart."""
    at = unswizzle(start + row // 8 * 1024 + row % 8 * 128 + 2 * k)
    return memory[at : at + 2].view(np.uint16)[0]


def mn_major(memory, start, i, k, leading):
    """Element (i, k) of an MN-major operand: 64 elements of i in a line, 8 of k in 1024 bytes, then ``leading``."""
    at = unswizzle(start + i // 64 * leading + i % 64 * 2 + k // 8 * 1024 + k % 8 * 128)
    return memory[at : at + 2].view(np.uint16)[0]


@pytest.mark.parametrize("rows", [8, 64, 128])
def test_k_major_tile(rows):
    """TMA box of 64 (k) x rows; 16 elements along K are 32 bytes, 64 rows 8192."""
    values = np.arange(rows * 64, dtype=np.uint16).reshape(rows, 64)
    memory = tma_box(values, 128)
    for row in range(rows):
        for step in range(4):
            start = 32 * step + row // 64 * 8192
            got = [k_major(memory, start, row % 64, k) for k in range(16)]
            assert (got == values[row, 16 * step : 16 * step + 16]).all()


@pytest.mark.parametrize("rows", [16, 64, 128])
def test_k_major_plane(rows):
    """TMA box of 32 (k) x rows, 64 bytes a row; 8 rows are 512 bytes, 64 rows 4096."""
    values = np.arange(rows * 32, dtype=np.uint16).reshape(rows, 32)
    memory = tma_box(values, 64)
    for row in range(rows):
        for step in range(2):
            start = 32 * step + row // 64 * 4096
            places = [unswizzle(start + row % 64 // 8 * 512 + row % 8 * 64 + 2 * k, 64) for k in range(16)]
            got = [memory[at : at + 2].view(np.uint16)[0] for at in places]
            assert (got == values[row, 16 * step : 16 * step + 16]).all()


def test_a_plane_has_no_bank_conflicts():
    """The same 16 bytes along K of 8 rows are in 8 different groups of 4 banks."""
    for store_block_n in range(4):
        assert len({unswizzle(64 * row + 16 * store_block_n, 64) // 16 % 8 for row in range(8)}) == 8


def test_mn_major_plane():
    """TMA boxes of 64 (n) x 32 (k): a box has 4096 bytes."""
    values = np.arange(32 * 128, dtype=np.uint16).reshape(32, 128)
    memory = np.concatenate([tma_box(values[:, 64 * s : 64 * s + 64], 128) for s in range(2)])
    for step in range(2):
        for n in range(128):
            got = [mn_major(memory, 2048 * step, n, k, 4096) for k in range(16)]
            assert (got == values[16 * step : 16 * step + 16, n]).all()


@pytest.mark.parametrize("columns", [64, 256])
def test_mn_major_tile(columns):
    """TMA boxes of 64 (n) x 64 (k), one after the other: 16 elements along K are 2048 bytes, a box 8192."""
    values = np.arange(64 * columns, dtype=np.uint16).reshape(64, columns)  # k, n
    memory = np.concatenate([tma_box(values[:, 64 * s : 64 * s + 64], 128) for s in range(columns // 64)])
    for step in range(4):
        for n in range(columns):
            got = [mn_major(memory, 2048 * step, n, k, 8192) for k in range(16)]
            assert (got == values[16 * step : 16 * step + 16, n]).all()


def test_halves_of_a_shared_tile():
    """Two CTAs of a multicast load halves of what one would load: along rows, or along K where it is MN-major."""
    values = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    whole = tma_box(values, 128)
    halves = np.concatenate([tma_box(values[:32], 128), tma_box(values[32:], 128)])
    assert (whole == halves).all()


def fragments(tile):
    """The accumulator registers of a warpgroup for a 64 x n tile: [thread][register], as PTX draws them."""
    rows, n = tile.shape
    assert rows == 64
    registers = np.zeros((128, n // 2), tile.dtype)
    for t in range(128):
        for r in range(n // 2):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (r // 2 % 2)
            column = 8 * (r // 4) + 2 * (t % 4) + r % 2
            registers[t, r] = tile[row, column]
    return registers


def test_fragments_cover_the_tile():
    tile = np.arange(64 * 32).reshape(64, 32)
    assert sorted(fragments(tile).ravel()) == list(range(64 * 32))


def stmatrix(memory, addresses, words, transposed):
    """One stmatrix.x4 of a warp: words[lane][q] is a pair of elements; lane 8 q + r names row r of matrix q."""
    for q in range(4):
        matrix = np.zeros((8, 8), np.uint16)
        for lane in range(32):
            for e in range(2):
                matrix[lane // 4, 2 * (lane % 4) + e] = words[lane][q][e]
        if transposed:
            matrix = np.ascontiguousarray(matrix.T)
        for r in range(8):
            at = addresses[8 * q + r]
            assert at % 16 == 0
            memory[at : at + 16] = matrix[r].view(np.uint8)


def staging_offset(warp, lane, j, width, transposed):
    """``staging_offset`` of epilogue.cuh, in Python."""
    q, r = lane // 8, lane % 8
    if transposed:
        offset, width = (8 * (j + q // 2) + r) * 128 + (2 * warp + q % 2) * 16, 128
    else:
        offset = (16 * warp + 8 * (q % 2) + r) * width + (j + q // 2) * 16
    return offset ^ ((offset >> 3) & ((width - 16) & 0x70))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [16, 32, 64])
def test_staging_is_what_tma_stores(columns, transposed):
    """After stmatrix the buffer is the box that TMA would have loaded: so TMA stores element (i, j) to (i, j)."""
    tile = np.arange(64 * columns, dtype=np.uint16).reshape(64, columns)
    registers = fragments(tile)
    memory = np.zeros(128 * columns, np.uint8)
    width = 128 if transposed else 2 * columns
    for warp in range(4):
        for j in range(0, columns // 8, 2):
            addresses = [staging_offset(warp, lane, j, width, transposed) for lane in range(32)]
            words = [
                [registers[32 * warp + lane, 4 * (j + q // 2) + 2 * (q % 2) :][:2] for q in range(4)]
                for lane in range(32)
            ]
            stmatrix(memory, addresses, words, transposed)
    box = np.ascontiguousarray(tile.T) if transposed else tile
    assert (memory == tma_box(box, width)).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_has_no_bank_conflicts(transposed):
    """The 8 rows of each matrix are in 8 different groups of 4 banks."""
    for warp in range(4):
        for j in range(0, 8, 2):
            addresses = [staging_offset(warp, lane, j, 128, transposed) for lane in range(32)]
            for q in range(4):
                assert len({at // 16 % 8 for at in addresses[8 * q : 8 * q + 8]}) == 8


def float_stores(warp, columns, transposed):
    """The stores of a float32 store block by ``stage_floats`` of epilogue.cuh: of each the lanes' (address, row
    and first column of the tile, columns).
    """
    if transposed:
        for column, h in itertools.product(range(0, columns, 8), range(2)):
            for e in range(2):
                places = [(16 * warp + 8 * h + lane // 4, column + 2 * (lane % 4) + e) for lane in range(32)]
                halves = [row // 32 * columns * 128 for row, _ in places]
                yield [(half + unswizzle(n * 128 + row % 32 * 4), row, n, 1) for half, (row, n) in zip(halves, places)]
        return
    half = columns // 2
    for column, h in itertools.product(range(0, half, 8), range(2)):
        for second in (False, True):
            store = []
            for lane in range(32):
                row, trades = 16 * warp + 8 * h + lane // 4, bool(lane // 4 & (1 if columns == 32 else 2))
                n = column + half * (trades != second) + 2 * (lane % 4)
                store.append((unswizzle(4 * (row * columns + n), 4 * columns), row, n, 2))
            yield store


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [16, 32])
def test_staging_of_float32_is_what_tma_stores(columns, transposed):
    """The buffer is the box, or where transposed the two boxes of 32 elements along m, that TMA would have loaded."""
    tile = np.arange(64 * columns, dtype=np.float32).reshape(64, columns)
    memory = np.zeros(256 * columns, np.uint8)
    written = np.zeros((64, columns), int)
    for warp in range(4):
        for store in float_stores(warp, columns, transposed):
            for at, row, column, count in store:
                assert at % (4 * count) == 0
                assert 16 * warp <= row < 16 * warp + 16
                memory[at : at + 4 * count] = tile[row, column : column + count].view(np.uint8)
                written[row, column : column + count] += 1
    assert (written == 1).all()
    if transposed:
        boxes = [tma_box(np.ascontiguousarray(tile[32 * i : 32 * i + 32].T), 128) for i in range(2)]
        assert (memory == np.concatenate(boxes)).all()
    else:
        assert (memory == tma_box(tile, 4 * columns)).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [16, 32])
def test_stores_of_float32_have_no_bank_conflicts(columns, transposed):
    """The stores of a cycle, 4 bytes by 32 lanes or 8 bytes by 16, are in 32 different banks."""
    for warp in range(4):
        for store in float_stores(warp, columns, transposed):
            at_once = 32 // store[0][3]
            for first in range(0, 32, at_once):
                banks = [at // 4 % 32 + i for at, _, _, count in store[first : first + at_once] for i in range(count)]
                assert sorted(banks) == list(range(32))
