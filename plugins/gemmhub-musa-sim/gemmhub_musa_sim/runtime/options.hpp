// The simulator's options; musa_sim.h says what each does.
#pragma once

namespace musa_sim {

struct Options {
  int lazy = 1;
  int devices = 1;
  int arch = 22;
  int workers = 2;
  int seed = 0;
  int async = 1;
  int layout = 0;
  int lockstep = 0;
  int poison = 1;
  int align = 256;
  int timeout = 60;
  int count = 0;
  int quiet = 0;
};

extern Options options;

// The option of that upper-case name, or null.
int* find_option(const char* name);

}  // namespace musa_sim
