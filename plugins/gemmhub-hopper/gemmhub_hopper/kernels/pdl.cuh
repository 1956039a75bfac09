// When a kernel lets the next one begin (launch_dependent_grids of ptx.cuh): when it has started, has asked for all of its loads, or has
// its last sums. early.py has the same numbers, and says which is taken.
#pragma once

constexpr int STARTED = 1, LOADED = 2, SUMMED = 3;
