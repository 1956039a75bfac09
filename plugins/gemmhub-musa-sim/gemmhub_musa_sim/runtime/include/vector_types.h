/* The built-in vector types. */
#ifndef MUSA_SIM_VECTOR_TYPES_H
#define MUSA_SIM_VECTOR_TYPES_H

#if defined(__GNUC__)
#define MUSA_SIM_ALIGNED(bytes) __attribute__((aligned(bytes)))
#else
#error "the simulator's headers need a compiler with GNU attributes"
#endif

#define MUSA_SIM_VECTORS(name, type, size)                                              \
  typedef struct name##1 { type x; } name##1;                                           \
  typedef struct MUSA_SIM_ALIGNED(2 * size) name##2 { type x, y; } name##2;             \
  typedef struct name##3 { type x, y, z; } name##3;                                     \
  typedef struct MUSA_SIM_ALIGNED(4 * size > 16 ? 16 : 4 * size) name##4 { type x, y, z, w; } name##4;

MUSA_SIM_VECTORS(char, signed char, 1)
MUSA_SIM_VECTORS(uchar, unsigned char, 1)
MUSA_SIM_VECTORS(short, short, 2)
MUSA_SIM_VECTORS(ushort, unsigned short, 2)
MUSA_SIM_VECTORS(int, int, 4)
MUSA_SIM_VECTORS(uint, unsigned, 4)
MUSA_SIM_VECTORS(float, float, 4)
MUSA_SIM_VECTORS(longlong, long long, 8)
MUSA_SIM_VECTORS(double, double, 8)
#undef MUSA_SIM_VECTORS

#ifdef __cplusplus
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define MUSA_SIM_MAKE(name, type)                                                                            \
  static inline name##2 make_##name##2(type x, type y) { name##2 v = {x, y}; return v; }                    \
  static inline name##3 make_##name##3(type x, type y, type z) { name##3 v = {x, y, z}; return v; }         \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { name##4 v = {x, y, z, w}; return v; }
MUSA_SIM_MAKE(int, int)
MUSA_SIM_MAKE(uint, unsigned)
MUSA_SIM_MAKE(float, float)
MUSA_SIM_MAKE(double, double)
#undef MUSA_SIM_MAKE
#endif

#endif
