#include "options.hpp"

#include <cstdlib>
#include <cstring>
#include <string>

#include "musa_sim.h"

namespace musa_sim {

namespace {

struct Named {
  const char* name;
  int Options::*member;
};

constexpr Named kNames[] = {
    {"LAZY", &Options::lazy},         {"DEVICES", &Options::devices}, {"ARCH", &Options::arch},
    {"WORKERS", &Options::workers},   {"SEED", &Options::seed},       {"ASYNC", &Options::async},
    {"LAYOUT", &Options::layout},     {"LOCKSTEP", &Options::lockstep}, {"POISON", &Options::poison},
    {"ALIGN", &Options::align},       {"TIMEOUT", &Options::timeout}, {"COUNT", &Options::count},
    {"QUIET", &Options::quiet},
};

Options from_environment() {
  Options read;
  for (const Named& named : kNames)
    if (const char* text = std::getenv((std::string("MUSA_SIM_") + named.name).c_str()))
      read.*named.member = std::atoi(std::strncmp(text, "mp_", 3) == 0 ? text + 3 : text);
  return read;
}

}  // namespace

Options options = from_environment();

int* find_option(const char* name) {
  for (const Named& named : kNames)
    if (std::strcmp(named.name, name) == 0) return &(options.*named.member);
  return nullptr;
}

}  // namespace musa_sim

extern "C" int musaSimSetOption(const char* name, int value) {
  int* option = name ? musa_sim::find_option(name) : nullptr;
  if (!option) return 0;
  *option = value;
  return 1;
}

extern "C" int musaSimGetOption(const char* name, int* value) {
  const int* option = name ? musa_sim::find_option(name) : nullptr;
  if (!option || !value) return 0;
  *value = *option;
  return 1;
}
