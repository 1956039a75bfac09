/* Matrix fragments: mtmusa::wmma. */
#ifndef MUSA_SIM_MMA_H
#define MUSA_SIM_MMA_H
#ifdef __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include "crt/mma.h"
#else
#define __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include "crt/mma.h"
#undef __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#endif
#endif
