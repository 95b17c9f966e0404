#include "crew.hpp"

#include <dlfcn.h>

namespace asap {
namespace {

// What a compiler calls for `#pragma omp parallel` and `barrier`, by the names of GCC's runtime;
// LLVM's has them too.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* argument, unsigned num_threads, unsigned flags);
  void (*barrier)();
  int (*thread_num)();
  int (*num_threads)();

  bool is_there() const { return parallel && barrier && thread_num && num_threads; }
};

template <class Function>
void find(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

const OpenMp& open_mp() {
  static const OpenMp found = [] {
    OpenMp runtime;
    find(runtime.parallel, "GOMP_parallel");
    find(runtime.barrier, "GOMP_barrier");
    find(runtime.thread_num, "omp_get_thread_num");
    find(runtime.num_threads, "omp_get_num_threads");
    return runtime;
  }();
  return found;
}

}  // namespace

void Member::meet() const {
  if (num_members > 1) open_mp().barrier();
}

void together(std::int64_t operations, int num_threads,
              const std::function<void(const Member&)>& work) {
  if (operations < kShareable || num_threads < 2 || !open_mp().is_there()) {
    work(Member{0, 1});
    return;
  }
  const auto body = [](void* argument) {
    const auto& each = *static_cast<const std::function<void(const Member&)>*>(argument);
    each(Member{open_mp().thread_num(), open_mp().num_threads()});
  };
  open_mp().parallel(body, const_cast<void*>(static_cast<const void*>(&work)),
                     static_cast<unsigned>(num_threads), 0);
}

int team_of(int num_threads) {
  std::int64_t found = 0;
  together(kShareable, num_threads, [&](const Member& member) {
    if (member.leads()) found = member.num_members;
  });
  return static_cast<int>(found);
}

}  // namespace asap
