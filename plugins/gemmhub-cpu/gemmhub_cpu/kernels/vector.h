// Eight words at a time, by the instructions that every processor of the architecture has which runs these kernels.
#pragma once

#ifdef __x86_64__
#include "x86_64/vector.h"
#else
#include "aarch64/vector.h"
#endif
