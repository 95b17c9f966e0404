// Products and attention on three threads of our own, in the place of an OpenMP runtime, which a
// sanitizer cannot see into: the numbers of one thread, to the bit.
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "asap/attention.hpp"
#include "asap/products.hpp"

namespace {

constexpr int kThreads = 3;

thread_local int own_index = 0;
thread_local int team_size = 1;
thread_local std::barrier<>* meeting = nullptr;
int num_teams = 0;

using Floats = std::vector<float>;

Floats random(std::int64_t count) {
  static std::mt19937 generator(5);
  Floats floats(static_cast<std::size_t>(count));
  for (float& each : floats) each = std::normal_distribution<float>()(generator);
  return floats;
}

asap::HeadVectors heads(const Floats& floats, std::int64_t num_heads, std::int64_t num_tokens,
                        std::int64_t width) {
  return {floats.data(), num_heads, num_tokens, width, num_tokens * width, width};
}

// Compare what `call(out, num_threads)` makes of `count` numbers.
template <class Call>
bool is_equal(const char* name, std::int64_t count, Call call) {
  Floats one(static_cast<std::size_t>(count)), several = one;
  call(one.data(), 1);
  const int before = num_teams;
  call(several.data(), kThreads);
  if (num_teams == before + 1 && one == several) return true;
  std::fprintf(stderr, "%s: %s\n", name, num_teams == before ? "no team" : "other numbers");
  return false;
}

bool attends(std::int64_t num_heads, std::int64_t num_kept, std::int64_t num_new,
             std::int64_t num_tokens) {
  const Floats query = random(num_heads * num_new * 40), key = random(num_kept * num_tokens * 40);
  const auto keys = heads(key, num_kept, num_tokens, 40);
  return is_equal("attend", num_heads * num_new * 40, [&](float* out, int num_threads) {
    asap::attend(out, heads(query, num_heads, num_new, 40), keys, keys, 0.1f, num_threads);
  });
}

bool multiplies() {
  const Floats x = random(400 * 500), panels = random(5 * 500 * 32);
  return is_equal("multiply", 400 * 150, [&](float* out, int num_threads) {
    asap::multiply(out, x.data(), {panels.data(), 500, 150}, 400, num_threads);
  });
}

bool multiplies_swiglu() {
  const std::vector<std::int32_t> num_rows_E = {300, 0, 31};
  const Floats x = random(331 * 500), gate_up = random(3 * 6 * 500 * 32),
               down = random(3 * 16 * 90 * 32);
  return is_equal("multiply_swiglu", 331 * 500, [&](float* out, int num_threads) {
    asap::multiply_swiglu(out, x.data(), num_rows_E, {gate_up.data(), 500, 90},
                          {down.data(), 90, 500}, num_threads);
  });
}

}  // namespace

extern "C" {

void GOMP_parallel(void (*body)(void*), void* argument, unsigned num_threads, unsigned) {
  ++num_teams;
  std::barrier<> all(num_threads);
  const auto member = [&](int index) {
    own_index = index;
    team_size = static_cast<int>(num_threads);
    meeting = &all;
    body(argument);
    own_index = 0;
    team_size = 1;
  };
  std::vector<std::jthread> others;
  for (unsigned n = 1; n < num_threads; ++n) others.emplace_back(member, static_cast<int>(n));
  member(0);
}
void GOMP_barrier() { meeting->arrive_and_wait(); }
int omp_get_thread_num() { return own_index; }
int omp_get_num_threads() { return team_size; }
}

int main() {
  const bool is_good = attends(6, 2, 90, 300) & attends(20, 1, 3, 3000) & attends(5, 5, 70, 400) &
                       multiplies() & multiplies_swiglu();
  return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}
