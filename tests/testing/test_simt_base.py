"""The fibers and barriers that all emulators of kernels share, compiled alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gemmhub.testing.host_kernels import SIMT, CompileError, HostKernels

pytestmark = pytest.mark.compiler

FIBERS = r"""
#include "simt/fiber.hpp"
#include <cstdio>
using namespace simt;
Fiber outside, inside; int steps;
void body() { steps++; switch_to(inside, outside); steps += 10; switch_to(inside, outside); }
int main() {
    Stacks stacks;
    stacks.reserve(2);
    prepare(inside, stacks, 1, body);
    switch_to(outside, inside);
    std::printf("%d", steps);
    switch_to(outside, inside);
    std::printf(" %d", steps);
    const auto low = reinterpret_cast<uintptr_t>(stacks.at(0));
    std::printf(" %d%d", stacks.overflow(low - 1), stacks.overflow(low + (64 << 20)));
}
"""
MEETINGS = r"""
#include "simt/groups.hpp"
#include "simt/schedule.hpp"
#include <cstdio>

struct Thread : simt::Thread { int number; };
struct Machine : simt::Schedule<Thread> {
    Thread* choose() override { return ready.empty() ? nullptr : take(ready.size() - 1); }
} machine;
Thread threads[4];
simt::Stacks stacks;
simt::Meeting<Thread> barrier;
simt::Warp<Thread> warp;

void run(void (*entry)()) {
    stacks.reserve(4);
    for (int i = 3; i >= 0; --i) {
        threads[i] = {};
        threads[i].number = i;
        machine.start(threads[i], stacks, i, entry);
    }
    machine.run();
    std::printf("\n");
}

void in_step() {
    for (int step = 0; step < 2; ++step) {
        std::printf("%d ", machine.current->number);
        machine.meet(barrier, 4, {"block_sync", {"dir/kernel.cu", 7}}, [] { std::printf("| "); });
    }
    machine.leave();
}
void exchange() {
    int value = machine.current->number;
    machine.exchange(warp, value, 4, {"shuffle"}, &value, [](void** lanes) {
        int old[4];
        for (int i = 0; i < 4; ++i) old[i] = *static_cast<int*>(lanes[i]);
        for (int i = 0; i < 4; ++i) *static_cast<int*>(lanes[i]) = old[i ^ 1];
    });
    std::printf("%d ", value);
    machine.leave();
}
void one_is_missing() {
    const int number = machine.current->number;
    if (number == 0) machine.leave();
    const simt::Place place = {"block_sync", {"dir/kernel.cu", unsigned(number / 2)}};
    std::printf("%d", barrier.agrees(place));
    machine.meet(barrier, 4, place, [] {});
}
void stops() {
    if (machine.current->number == 2) machine.stop();
    std::printf("%d ", machine.current->number);
    machine.leave();
}

int main() {
    run(in_step);
    run(exchange);
    run(one_is_missing);
    std::vector<Thread*> all;
    for (Thread& thread : threads) all.push_back(&thread);
    std::printf("%s\n", simt::deadlock(all, [](const Thread& thread) { return simt::text(thread.waits); }).c_str());
    machine.ready.clear();
    run(stops);
    simt::Groups<int> groups;
    const auto print = [](int work) { std::printf("%d ", work); };
    groups.add(1), groups.add(2), groups.commit(), groups.add(3), groups.commit(), groups.add(4);
    groups.finish(1, print), std::printf("| "), groups.finish(0, print), std::printf("| ");
    groups.finish(0, print, true), std::printf("%d\n", groups.empty());
}
"""


def output(tmp_path: Path, source: str, *flags: str) -> str:
    main, program = tmp_path / "main.cpp", tmp_path / "program"
    main.write_text(source)
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", *flags, f"-I{SIMT.parent}", main, SIMT / "fiber.cpp"]
    subprocess.run([*command, "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("flags", [(), ("-DSIMT_UCONTEXT",)], ids=["assembly", "ucontext"])
def test_fibers(tmp_path, flags):
    """Also by the context switch for machines other than x86-64."""
    assert output(tmp_path, FIBERS, *flags) == "1 11 10"


def test_meetings(tmp_path):
    """A barrier releases its threads in order; a collective exchanges; stuck threads are counted by place."""
    assert output(tmp_path, MEETINGS).splitlines() == [
        "0 1 2 3 | 0 1 2 3 | ",
        "1 0 3 2 ",
        "100",
        "deadlock: 1 thread waits for block_sync at kernel.cu:0; 2 threads wait for block_sync at kernel.cu:1",
        "0 1 ",
        "1 2 | 3 | 4 1",
    ]


def test_kernels_on_the_host(tmp_path):
    """The emulator's files come before the kernels' of the same name; changes make another library."""
    files = {
        "kernels/gemm.cu": '#include "ptx.cuh"\nextern "C" int gemm() { return TILE + ptx(); }',
        "kernels/ptx.cuh": "#error for a GPU",
        "emulator/ptx.cuh": '#include "machine.hpp"\ninline int ptx() { return machine(); }',
        "emulator/machine.hpp": "#pragma once\nint machine();",
        "emulator/machine.cpp": '#include "machine.hpp"\nint machine() { return 7; }',
        "emulator/kernel.cpp": '#include "machine.hpp"\n#include "gemm.cu"',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    kernels = HostKernels(tmp_path / "kernels", tmp_path / "emulator")
    assert kernels.library({"TILE": 30}).gemm() == 37
    assert kernels.library({"TILE": 30}, [("gemm.cu", "TILE +", "TILE -")]).gemm() == 23
    assert kernels.library({"TILE": 30}).gemm() == 37
    with pytest.raises(CompileError, match="TILE"):
        kernels.library({})
    with pytest.raises(AssertionError, match=r"gemm.cu has no 'TILE \*'"):
        kernels.library({"TILE": 30}, [("gemm.cu", "TILE *", "TILE -")])
