// Instructions that are younger than the assemblers which compile this (binutils 2.35 to 2.40), written as bytes.
//
// The compiler chooses vector registers, and prints their names: the assembler looks for their numbers.
#pragma once

#include <immintrin.h>

#define REGISTER_NUMBER(name, operand) ".ifc %t" operand ",%%ymm\\i\n.set .L" name ",\\i\n.endif\n"

// A product of three vectors of 256 bits: VEX.256.0F38.W0 of `prefix` (1: 66, 2: F3, 3: F2) and `opcode`.
#define VEX_256(prefix, opcode)                                                                                       \
  ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n" REGISTER_NUMBER("sum", "0") REGISTER_NUMBER("x", "1")              \
      REGISTER_NUMBER("y", "2") ".endr\n"                                                                             \
                                ".byte 0xc4, 0xe2 - ((.Lsum >> 3) << 7) - ((.Ly >> 3) << 5), ((15 - .Lx) << 3) + 4 + " \
      prefix ", " opcode ", 0xc0 + ((.Lsum & 7) << 3) + (.Ly & 7)\n"

namespace {

// vpdpbusd of AVX-VNNI: sum += four products of unsigned bytes of x and signed bytes of y.
inline __attribute__((always_inline)) __m256i dot_unsigned_signed(__m256i sum, __m256i x, __m256i y) {
  asm(VEX_256("1", "0x50") : "+x"(sum) : "x"(x), "x"(y));
  return sum;
}

// vpdpbssd of AVX-VNNI-INT8: the same of signed bytes.
inline __attribute__((always_inline)) __m256i dot_signed(__m256i sum, __m256i x, __m256i y) {
  asm(VEX_256("3", "0x50") : "+x"(sum) : "x"(x), "x"(y));
  return sum;
}

// tdpfp16ps of AMX-FP16: tile kC += tile kA @ tile kB.
template <int kC, int kA, int kB>
inline void tile_float16() {
  asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" : : "i"((15 - kB) << 3 | 3), "i"(0xc0 | kC << 3 | kA));
}

}  // namespace
