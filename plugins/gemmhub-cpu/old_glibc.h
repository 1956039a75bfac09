// Included before each source of a wheel's compiled files: the functions that glibc 2.34 moved from libpthread and libdl to
// libc are linked by their old versions, which every later glibc has, too. A program's start asks for the new version of
// __libc_start_main, so that the self-check begins with a start of its own.
#pragma once

#if defined(__GLIBC__) || defined(__linux__)
#ifdef __x86_64__
#define GEMMHUB_OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_" version)
GEMMHUB_OLD(pthread_setaffinity_np, "2.3.4");
GEMMHUB_OLD(pthread_setname_np, "2.12");
#define GEMMHUB_FIRST "2.2.5"
#else
#define GEMMHUB_OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_2.17")
GEMMHUB_OLD(pthread_setaffinity_np, "");
GEMMHUB_OLD(pthread_setname_np, "");
#define GEMMHUB_FIRST ""
#endif
GEMMHUB_OLD(pthread_create, GEMMHUB_FIRST);
GEMMHUB_OLD(pthread_once, GEMMHUB_FIRST);
GEMMHUB_OLD(pthread_key_create, GEMMHUB_FIRST);
GEMMHUB_OLD(pthread_getspecific, GEMMHUB_FIRST);
GEMMHUB_OLD(pthread_setspecific, GEMMHUB_FIRST);
GEMMHUB_OLD(pthread_attr_setstacksize, GEMMHUB_FIRST);
GEMMHUB_OLD(pthread_sigmask, GEMMHUB_FIRST);
GEMMHUB_OLD(dlopen, GEMMHUB_FIRST);
GEMMHUB_OLD(dlsym, GEMMHUB_FIRST);
GEMMHUB_OLD(dlerror, GEMMHUB_FIRST);
#endif

#ifdef GEMMHUB_OWN_START
#include <cstdlib>

int main(int count, char** words);

// The dynamic linker has initialised the C library when a program starts.
extern "C" [[noreturn, gnu::used]] void gemmhub_start(long* stack) {
  std::exit(main(static_cast<int>(*stack), reinterpret_cast<char**>(stack + 1)));
}

#ifdef __x86_64__
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call gemmhub_start\n hlt\n");
#else
__asm__(".globl _start\n_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n b gemmhub_start\n");
#endif
#endif
