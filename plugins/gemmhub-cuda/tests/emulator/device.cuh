// In place of gemmhub_cuda/kernels/device.cuh: the same functions for a host compiler.
#pragma once
#include "machine.hpp"

using emulator::block_sync, emulator::device_fence;
using emulator::count_up, emulator::load_partial, emulator::store_partial;
