// AMX, AMX-FP16, vpdpbusd of AVX-VNNI, vpdpbssd of AVX-VNNI-INT8 and vcvtneps2bf16 of AVX512_BF16 on a CPU without them: a handler of SIGILL runs these instructions
// of compiled code, as Intel's manual defines them, so that tests execute what is shipped. A configuration that the processor refuses ends the process as there, by SIGSEGV;
// an instruction that does not fit the configuration by SIGILL.
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#pragma GCC target("avx2,fma,f16c")

namespace {

struct Tiles {
  uint8_t configured, row_bytes[8], rows[8];
  uint8_t bytes[8][16][64];
};
thread_local Tiles tiles;
std::atomic<int64_t> executed{0};
struct sigaction before;

[[noreturn]] void die(int signal, const char* why) {
  const auto written = write(2, why, std::strlen(why));
  static_cast<void>(written);
  ::signal(signal, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(signal);
  _exit(70);
}

void require(bool condition, const char* why) {
  if (!condition) die(SIGILL, why);
}

struct Instruction {  // a VEX prefix of three bytes, an opcode and its operands
  const uint8_t* at;
  greg_t* registers;
  int prefix = 0, opcode = 0, third = 0, field = 0, mode = 0, base = 0;  // third: VEX.vvvv
  const uint8_t* end = nullptr;
  uint64_t address = 0, stride = 0;

  uint64_t value(int number) const {
    constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                 REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return static_cast<uint64_t>(registers[kPlaces[number]]);
  }

  bool dot() const { return opcode == 0x50 && (prefix == 1 || prefix == 3) && (at[2] & 4) != 0; }
  bool rounding() const { return opcode == 0x72; }

  // Two operands in the first 16 registers.
  bool decode_registers(const uint8_t* operands, int extension) {
    mode = *operands >> 6, field = (*operands >> 3 & 7) | (extension & 0x80 ? 0 : 8);
    base = (*operands & 7) | (extension & 0x20 ? 0 : 8);
    end = operands + 1;
    return mode == 3;
  }

  bool decode() {
    if (at[0] == 0x62 && (at[1] & 0x5F) == 0x52 && at[2] == 0x7E && at[3] == 0x28 && at[4] == 0x72) {
      opcode = at[4];  // EVEX of 256 bits, not masked
      return decode_registers(at + 5, at[1]);
    }
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x80) != 0) return false;  // map 0F38, W0
    prefix = at[2] & 3, third = ~(at[2] >> 3) & 15, opcode = at[3];
    if (dot()) return decode_registers(at + 4, at[1]);
    if ((at[2] & 4) != 0) return false;  // 128 bits
    if (opcode != 0x49 && opcode != 0x4B && opcode != 0x5C && opcode != 0x5E) return false;
    mode = at[4] >> 6, field = (at[4] >> 3 & 7) | (at[1] & 0x80 ? 0 : 8), base = at[4] & 7;
    end = at + 5;
    if (mode == 3) return true;
    const bool index_byte = base == 4;
    bool relative = mode == 0 && base == 5, no_base = false;
    if (index_byte) {
      const int index = (*end >> 3 & 7) | (at[1] & 0x40 ? 0 : 8);
      base = *end & 7, no_base = mode == 0 && base == 5;
      stride = index == 4 ? 0 : value(index) << (*end >> 6);
      ++end;
    }
    if (!relative && !no_base) address = value(base | (at[1] & 0x20 ? 0 : 8));
    int32_t far = 0;
    if (mode == 1) far = static_cast<int8_t>(*end++);
    if (mode == 2 || relative || no_base) std::memcpy(&far, end, 4), end += 4;
    address += static_cast<int64_t>(far) + (relative ? reinterpret_cast<uint64_t>(end) : 0);
    return true;
  }
};

void configure(const uint8_t* from) {
  bool right = from[0] == 1 && from[1] == 0;
  for (int i = 2; i < 16; ++i) right &= from[i] == 0;
  for (int i = 32; i < 48; ++i) right &= from[i] == 0;
  for (int i = 56; i < 64; ++i) right &= from[i] == 0;
  for (int i = 0; i < 8; ++i) {
    uint16_t bytes;
    std::memcpy(&bytes, from + 16 + 2 * i, 2);
    right &= bytes <= 64 && from[48 + i] <= 16 && (bytes == 0) == (from[48 + i] == 0);
    tiles.row_bytes[i] = static_cast<uint8_t>(bytes), tiles.rows[i] = from[48 + i];
  }
  if (!right) die(SIGSEGV, "ldtilecfg: not a configuration\n");
  std::memset(tiles.bytes, 0, sizeof tiles.bytes);
  tiles.configured = 1;
}

float widened(const uint8_t* from, bool float16) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  if (float16) return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

enum class Elements { kInt8, kBfloat16, kFloat16 };

void multiply(int c, int a, int b, Elements elements) {
  require(c < 8 && a < 8 && b < 8 && c != a && c != b && a != b, "a product of tiles that are not three\n");
  const int rows = tiles.rows[c], columns = tiles.row_bytes[c] / 4, deep = tiles.row_bytes[a] / 4;
  require(tiles.rows[a] == rows && tiles.row_bytes[b] == 4 * columns && tiles.rows[b] == deep && rows && deep,
          "tiles that do not fit each other\n");
  const bool float16 = elements == Elements::kFloat16;
  const unsigned mode = _mm_getcsr();
  // Subnormals are written as 0, and read as 0 but for those of float16.
  _mm_setcsr(float16 ? 0x9F80 : 0x9FC0);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      const uint8_t* left = tiles.bytes[a][i];
      uint8_t* out = tiles.bytes[c][i] + 4 * j;
      if (elements == Elements::kInt8) {
        uint32_t sum;
        std::memcpy(&sum, out, 4);
        for (int q = 0; q < 4 * deep; ++q)
          sum += static_cast<uint32_t>(static_cast<int8_t>(left[q]) *
                                       static_cast<int8_t>(tiles.bytes[b][q / 4][4 * j + q % 4]));
        std::memcpy(out, &sum, 4);
        continue;
      }
      float halves[2] = {0, 0}, sum;  // of the even and of the odd elements
      for (int q = 0; q < 2 * deep; ++q) {
        const float x = widened(left + 2 * q, float16);
        const float y = widened(tiles.bytes[b][q / 2] + 4 * j + 2 * (q % 2), float16);
        halves[q % 2] = __builtin_fmaf(x, y, halves[q % 2]);
      }
      std::memcpy(&sum, out, 4);
      sum += halves[0] + halves[1];
      std::memcpy(out, &sum, 4);
    }
  _mm_setcsr(mode);
  std::memset(tiles.bytes[c][rows], 0, 64 * (16 - rows));
}

void run(const Instruction& x) {
  if (x.opcode == 0x49 && x.prefix == 0 && x.mode != 3)
    return configure(reinterpret_cast<const uint8_t*>(x.address + x.stride));
  require(tiles.configured, "a tile instruction without a configuration\n");
  if (x.opcode == 0x49 && x.prefix == 0) {
    tiles.configured = 0;
    return;
  }
  const int tile = x.field;
  require(tile < 8 && tiles.rows[tile], "no such tile\n");
  if (x.opcode == 0x49 && x.prefix == 3 && x.mode == 3) {
    std::memset(tiles.bytes[tile], 0, sizeof tiles.bytes[tile]);
  } else if (x.opcode == 0x4B && (x.prefix == 3 || x.prefix == 2) && x.mode != 3) {
    if (x.prefix == 3) std::memset(tiles.bytes[tile], 0, sizeof tiles.bytes[tile]);
    for (int i = 0; i < tiles.rows[tile]; ++i) {
      char* memory = reinterpret_cast<char*>(x.address + i * x.stride);
      if (x.prefix == 3)
        std::memcpy(tiles.bytes[tile][i], memory, tiles.row_bytes[tile]);
      else
        std::memcpy(memory, tiles.bytes[tile][i], tiles.row_bytes[tile]);
    }
  } else if ((x.opcode == 0x5E && x.prefix == 3) || (x.opcode == 0x5C && (x.prefix == 2 || x.prefix == 3))) {
    const Elements floats = x.prefix == 2 ? Elements::kBfloat16 : Elements::kFloat16;
    multiply(tile, x.base | (x.at[1] & 0x20 ? 0 : 8), x.third, x.opcode == 0x5E ? Elements::kInt8 : floats);
  } else {
    die(SIGILL, "a tile instruction that is not emulated\n");
  }
}

// The registers of 256 bits that a signal's frame holds: the low halves in the part of fxsave, the others behind the header.
struct Vectors {
  uint8_t* const frame;
  explicit Vectors(void* context) : frame(reinterpret_cast<uint8_t*>(static_cast<ucontext_t*>(context)->uc_mcontext.fpregs)) {
    if (!(frame[512] & 4)) std::memset(frame + 576, 0, 256);  // the high halves are 0, and not written
    frame[512] |= 6;
  }
  void read(int number, void* to) const {
    std::memcpy(to, frame + 160 + 16 * number, 16);
    std::memcpy(static_cast<uint8_t*>(to) + 16, frame + 576 + 16 * number, 16);
  }
  void write(int number, const void* from) const {
    std::memcpy(frame + 160 + 16 * number, from, 16);
    std::memcpy(frame + 576 + 16 * number, static_cast<const uint8_t*>(from) + 16, 16);
  }
};

void add_dot_products(const Vectors& vectors, int to, int first, bool is_signed, int second) {
  uint32_t sums[8];
  uint8_t x[32];
  int8_t y[32];
  vectors.read(to, sums), vectors.read(first, x), vectors.read(second, y);
  for (int i = 0; i < 32; ++i)
    sums[i / 4] += static_cast<uint32_t>((is_signed ? static_cast<int8_t>(x[i]) : int{x[i]}) * y[i]);
  vectors.write(to, sums);
}

void round_to_bfloat16(const Vectors& vectors, int to, int from) {
  uint32_t x[8];
  uint16_t rounded[16] = {};
  vectors.read(from, x);
  for (int i = 0; i < 8; ++i) {
    const uint32_t exponent = x[i] & 0x7F800000, fraction = x[i] & 0x7FFFFF;
    if (!exponent)
      rounded[i] = static_cast<uint16_t>(x[i] >> 16 & 0x8000);
    else if (exponent == 0x7F800000 && fraction)
      rounded[i] = static_cast<uint16_t>(x[i] >> 16 | 0x40);
    else
      rounded[i] = static_cast<uint16_t>((x[i] + 0x7FFF + (x[i] >> 16 & 1)) >> 16);
  }
  vectors.write(to, rounded);
}

void illegal(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction x{reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers};
  if (!x.decode()) {
    sigaction(SIGILL, &before, nullptr);  // the instruction is run again, and handled as without this
    return;
  }
  if (x.dot())
    add_dot_products(Vectors(context), x.field, x.third, x.prefix == 3, x.base);
  else if (x.rounding())
    round_to_bfloat16(Vectors(context), x.field, x.base);
  else
    run(x);
  executed.fetch_add(1);
  registers[REG_RIP] = reinterpret_cast<greg_t>(x.end);
}

}  // namespace

extern "C" {

void amx_emulator_install() {
  struct sigaction action = {};
  action.sa_sigaction = illegal;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &before);
}

void amx_emulator_remove() { sigaction(SIGILL, &before, nullptr); }

// Emulated instructions so far, of all threads.
int64_t amx_emulator_executed() { return executed.load(); }

}  // extern "C"
