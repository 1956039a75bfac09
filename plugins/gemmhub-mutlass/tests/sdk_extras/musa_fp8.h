// The two 8-bit floating-point types, by name only: nothing here computes with them.
#pragma once
struct __mt_fp8_e4m3 {
  unsigned char __x;
};
struct __mt_fp8_e5m2 {
  unsigned char __x;
};
