// AMX on a CPU without it: a handler of SIGILL runs the tile instructions of compiled code, as Intel's manual defines them,
// so that tests execute what is shipped. A configuration that the processor refuses ends the process as there, by SIGSEGV;
// an instruction that does not fit the configuration by SIGILL.
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#pragma GCC target("avx2,fma")

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

  bool decode() {
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0) return false;  // map 0F38, W0, 128 bits
    prefix = at[2] & 3, third = ~(at[2] >> 3) & 15, opcode = at[3];
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

void multiply(int c, int a, int b, bool integers) {
  require(c < 8 && a < 8 && b < 8 && c != a && c != b && a != b, "a product of tiles that are not three\n");
  const int rows = tiles.rows[c], columns = tiles.row_bytes[c] / 4, deep = tiles.row_bytes[a] / 4;
  require(tiles.rows[a] == rows && tiles.row_bytes[b] == 4 * columns && tiles.rows[b] == deep && rows && deep,
          "tiles that do not fit each other\n");
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(0x9FC0);  // subnormals are read and written as 0
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      const uint8_t* left = tiles.bytes[a][i];
      uint8_t* out = tiles.bytes[c][i] + 4 * j;
      if (integers) {
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
        uint32_t x = 0, y = 0;
        std::memcpy(reinterpret_cast<char*>(&x) + 2, left + 2 * q, 2);
        std::memcpy(reinterpret_cast<char*>(&y) + 2, tiles.bytes[b][q / 2] + 4 * j + 2 * (q % 2), 2);
        float wide_x, wide_y;
        std::memcpy(&wide_x, &x, 4);
        std::memcpy(&wide_y, &y, 4);
        halves[q % 2] = __builtin_fmaf(wide_x, wide_y, halves[q % 2]);
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
  } else if ((x.opcode == 0x5E && x.prefix == 3) || (x.opcode == 0x5C && x.prefix == 2)) {
    multiply(tile, x.base | (x.at[1] & 0x20 ? 0 : 8), x.third, x.opcode == 0x5E);
  } else {
    die(SIGILL, "a tile instruction that is not emulated\n");
  }
}

void illegal(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction x{reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers};
  if (!x.decode()) {
    sigaction(SIGILL, &before, nullptr);  // the instruction is run again, and handled as without this
    return;
  }
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

// Tile instructions so far, of all threads.
int64_t amx_emulator_executed() { return executed.load(); }

}  // extern "C"
