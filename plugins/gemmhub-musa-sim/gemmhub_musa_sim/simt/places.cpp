#include "places.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace musa_sim {

namespace {

std::map<uintptr_t, std::string> known;

// The simulator's own headers: a finding belongs to the line that used them.
bool own_header(const std::string& file) {
  static const char* const kHeaders[] = {"mma.h",        "musa_fp16.h",   "musa_bf16.h", "musa_pipeline_primitives.h",
                                         "musa_simt.h", "musa_launch.h", "musa_16bit.h",  "musa_mp31.h"};
  return std::any_of(std::begin(kHeaders), std::end(kHeaders), [&](const char* one) { return file == one; });
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string bare(const char* module, uintptr_t offset) {
  char text[40];
  std::snprintf(text, sizeof text, "+0x%zx", static_cast<size_t>(offset));
  return base_name(module) + text;
}

}  // namespace

void resolve(const std::vector<uintptr_t>& pcs) {
  std::map<std::string, std::vector<uintptr_t>> by_module;
  std::map<uintptr_t, uintptr_t> base;
  for (const uintptr_t pc : pcs) {
    Dl_info info;
    if (known.count(pc) || !dladdr(reinterpret_cast<void*>(pc), &info) || !info.dli_fname) continue;
    by_module[info.dli_fname].push_back(pc);
    base[pc] = reinterpret_cast<uintptr_t>(info.dli_fbase);
  }
  for (const auto& [module, addresses] : by_module) {
    std::string command = "addr2line -i -a -e '" + module + "'";
    for (const uintptr_t pc : addresses) {
      char text[32];
      std::snprintf(text, sizeof text, " 0x%zx", static_cast<size_t>(pc - base[pc]));
      command += text;
      known[pc] = bare(module.c_str(), pc - base[pc]);
    }
    FILE* output = popen((command + " 2>/dev/null").c_str(), "r");
    if (!output) continue;
    // For each address its number on a line, then its frames, the innermost first: file:line, or ?? where unknown.
    size_t answered = 0;
    bool found = true;
    char line[4096];
    while (std::fgets(line, sizeof line, output)) {
      std::string frame = line;
      if (frame.compare(0, 2, "0x") == 0) {
        answered++;
        found = false;
        continue;
      }
      frame = base_name(frame.substr(0, frame.find_first_of(" \n")));
      if (found || answered == 0 || answered > addresses.size() || frame.empty() || frame[0] == '?') continue;
      known[addresses[answered - 1]] = frame;
      found = !own_header(frame.substr(0, frame.rfind(':')));
    }
    pclose(output);
  }
}

std::string place(uintptr_t pc) {
  const auto found = known.find(pc);
  if (found != known.end()) return found->second;
  resolve({pc});
  return known.count(pc) ? known[pc] : "an unknown place";
}

std::string function_name(const void* function) {
  Dl_info info;
  if (!dladdr(function, &info) || !info.dli_sname) return "kernel";
  int status = 0;
  char* demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 && demangled ? demangled : info.dli_sname;
  std::free(demangled);
  int depth = 0;  // of template arguments, which may have parentheses of their own
  for (size_t i = 0; i < name.size(); i++) {
    depth += (name[i] == '<') - (name[i] == '>');
    if (name[i] == '(' && depth == 0 && i > 0) name.resize(i);
  }
  if (name.compare(0, 5, "void ") == 0) name.erase(0, 5);
  return name;
}

}  // namespace musa_sim
