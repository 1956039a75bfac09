// The conversions of packing, by the instructions of the architecture.
#pragma once

#ifdef __x86_64__
#include "x86_64/elements.h"
#else
#include "aarch64/elements.h"
#endif
