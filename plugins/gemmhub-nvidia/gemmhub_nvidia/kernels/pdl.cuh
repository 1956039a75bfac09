// Programmatic dependent launch (PDL): when a kernel lets the next one in the stream begin (launch_dependent_grids of
// ptx_tma.cuh): when it has started, has issued all of its loads, or has its last sums. gemmhub_nvidia/pdl.py has the same
// numbers.
#pragma once

constexpr int STARTED = 1, LOADED = 2, SUMMED = 3;
