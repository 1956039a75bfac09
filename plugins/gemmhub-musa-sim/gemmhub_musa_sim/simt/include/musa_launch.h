/* Launches. mcc writes kernel<<<grid, block>>>(a, b) as
 *   musa_sim::launch(musa_sim::Configuration(grid, block), "kernel", POINTER, CALL)(a, b)
 * where CALL is a lambda that calls the kernel, so that its template arguments are deduced as in any call, and POINTER
 * gives its address, where its name alone determines it. */
#ifndef MUSA_LAUNCH_H
#define MUSA_LAUNCH_H
#include <tuple>
#include <type_traits>
#include <utility>

#include "musa_sim_device.h"

namespace musa_sim {

/* How kernels of one signature are called with an array of pointers to their arguments. */
template <class... P>
struct Signature {
  template <size_t... I>
  MUSA_SIM_UNHOOKED static void unpack(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<P>*>(arguments[I])...);
  }
  MUSA_SIM_UNHOOKED static void call(const void* function, void** arguments) {
    unpack(reinterpret_cast<void (*)(P...)>(const_cast<void*>(function)), arguments, std::index_sequence_for<P...>{});
  }
  static constexpr size_t sizes[sizeof...(P) + 1] = {sizeof(P)...};
};

template <class... P>
MusaSimKernel describe(void (*kernel)(P...), const char* name = nullptr) {
  using S = Signature<P...>;
  return {reinterpret_cast<const void*>(kernel), name, S::call, S::sizes, sizeof...(P), __MUSA_ARCH__ / 10,
          MUSA_SIM_INSTRUMENTED};
}

/* The same for a kernel that only a call can name: its first argument is what calls it. */
template <class Call, class... A>
struct Deduced {
  template <size_t... I>
  MUSA_SIM_UNHOOKED static void unpack(void** arguments, std::index_sequence<I...>) {
    (*static_cast<Call*>(arguments[0]))(*static_cast<A*>(arguments[I + 1])...);
  }
  MUSA_SIM_UNHOOKED static void call(const void*, void** arguments) {
    unpack(arguments, std::index_sequence_for<A...>{});
  }
  static constexpr size_t sizes[sizeof...(A) + 1] = {sizeof(Call), sizeof(A)...};
};

/* Makes a kernel known to musaLaunchKernel for as long as its module is loaded; mcc adds one after each. */
class Registered {
 public:
  template <class... P>
  Registered(void (*kernel)(P...), const char* name) : kernel_(describe(kernel, name)) {
    musaSimRegister(&kernel_);
  }
  ~Registered() { musaSimUnregister(&kernel_); }

 private:
  MusaSimKernel kernel_;
};

struct Configuration {
  dim3 grid, block;
  size_t dynamic_shared;
  musaStream_t stream;
  Configuration(dim3 grid_, dim3 block_, size_t dynamic_shared_ = 0, musaStream_t stream_ = nullptr)
      : grid(grid_), block(block_), dynamic_shared(dynamic_shared_), stream(stream_) {}

  void start(const MusaSimKernel& kernel, void** arguments) const {
    musaSimLaunch(&kernel, grid, block, arguments, dynamic_shared, stream);
  }
};

/* Used through a dependent type, so that a name which is no single function excludes the call and is no error. */
template <class Dependent, class... P>
constexpr auto pointer(Dependent, void (*kernel)(P...)) {
  return kernel;
}

template <class... P, class... A>
void start(const Configuration& configuration, const char* name, void (*kernel)(P...), A&&... given) {
  static_assert(sizeof...(P) == sizeof...(A), "a kernel must be launched with as many arguments as it has parameters");
  std::tuple<P...> values(std::forward<A>(given)...);  // converted to the parameters' types
  std::apply(
      [&](P&... value) {
        void* arguments[sizeof...(P) + 1] = {const_cast<void*>(static_cast<const void*>(&value))...};
        configuration.start(describe(kernel, name), arguments);
      },
      values);
}

template <class Call, class... A>
void start_deduced(const Configuration& configuration, const char* name, Call call, A... value) {
  using D = Deduced<Call, A...>;
  void* arguments[sizeof...(A) + 1] = {&call, const_cast<void*>(static_cast<const void*>(&value))...};
  const void* in_this_module = reinterpret_cast<const void*>(&D::call);
  configuration.start({in_this_module, name, D::call, D::sizes, sizeof...(A) + 1, __MUSA_ARCH__ / 10,
                       MUSA_SIM_INSTRUMENTED},
                      arguments);
}

template <class Pointer, class Call>
auto launch(Configuration configuration, const char* name, Pointer pointer, Call call) {
  return [=](auto&&... arguments) {
    if constexpr (std::is_invocable_v<Pointer, int>)
      start(configuration, name, pointer(0), std::forward<decltype(arguments)>(arguments)...);
    else
      start_deduced(configuration, name, call, std::decay_t<decltype(arguments)>(arguments)...);
  };
}

}  // namespace musa_sim

/* By the kernel itself, template kernels too; the plain musaLaunchKernel finds registered ones by their address. */
template <class... P>
static inline musaError_t musaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                                           size_t dynamic_shared = 0, musaStream_t stream = nullptr) {
  const MusaSimKernel known = musa_sim::describe(kernel);
  return musaSimLaunch(&known, grid, block, arguments, dynamic_shared, stream);
}

#endif
