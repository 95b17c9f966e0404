// Two processes on the fake runtime, an attention rank and a MoE device, each with a buffer that
// the other opens by its key. Usage: host_program RUNTIME KERNELS PLAN_BYTES ITEM_BYTES, the Layout
// of one rank and one device in int64 on stdin. Prints the sums of two tokens.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "asap/geometry.hpp"
#include "device.hpp"
#include "partition.hpp"

namespace asap::ascend {
namespace {

constexpr int kNumTokens = 2;
constexpr std::int64_t kEpoch = 7;
constexpr std::int64_t kTimeoutCycles = 100'000;
constexpr int kOk = 0, kTimeout = 1, kIdle = 4;
constexpr int kBlocks = kReceiveCores.vector;

struct Sizes {
  std::size_t plan, item;
};

// A key through a pipe, as it would go through a control message.
std::string exchange(int to, int from, const std::string& key) {
  std::array<char, 65> peer{};
  key.copy(peer.data(), peer.size());
  if (write(to, peer.data(), peer.size()) != 65 || read(from, peer.data(), peer.size()) != 65) {
    throw std::runtime_error("the peer is gone");
  }
  return peer.data();
}

class Die {
 public:
  Die(const char* runtime, const char* kernels, int number) : acl_(runtime) {
    acl_.init();
    acl_.set_device(number);
    stream_ = acl_.create_stream();
    kernels_ = std::make_unique<Kernels>(acl_, kernels);
  }
  ~Die() { acl_.destroy_stream(stream_); }

  const Acl& acl() const { return acl_; }

  template <class T>
  void* copy(const std::vector<T>& values) {
    void* memory = zeros(values.size() * sizeof(T));
    acl_.copy(memory, values.data(), values.size() * sizeof(T), Copy::host_to_device);
    return memory;
  }
  void* zeros(std::size_t num_bytes) {
    buffers_.push_back(SharedBuffer::create(acl_, num_bytes));
    return buffers_.back()->memory();
  }
  // The code block 0 leaves.
  int run(const std::string& name, void* status, std::initializer_list<Argument> arguments) {
    kernels_->launch(name, name == "asap_plan" || name == "test_scale_rows" ? 1 : kBlocks, stream_,
                     arguments);
    acl_.synchronize(stream_);
    int code = 0;
    acl_.copy(&code, status, sizeof(code), Copy::device_to_host);
    return code;
  }

 private:
  Acl acl_;
  Stream stream_ = nullptr;
  std::unique_ptr<Kernels> kernels_;
  std::vector<std::unique_ptr<SharedBuffer>> buffers_;
};

void expect(int code, const char* call) {
  if (code != kOk) throw std::runtime_error(std::string(call) + ": status " + std::to_string(code));
}

void attend(Die& die, const Layout& l, const Sizes& sizes, int to, int from) {
  const auto own = SharedBuffer::create(die.acl(), static_cast<std::size_t>(l.attention_bytes));
  const auto peer = SharedBuffer::open(die.acl(), exchange(to, from, own->key()));
  std::vector<float> rows(static_cast<std::size_t>(kNumTokens * l.hidden));
  std::vector<std::int32_t> experts;
  for (std::size_t n = 0; n < rows.size(); ++n) rows[n] = static_cast<float>(n % 5);
  for (std::int64_t n = 0; n < kNumTokens; ++n) {
    for (std::int64_t k = 0; k < l.top_k; ++k) experts.push_back(static_cast<std::int32_t>(n + k));
  }
  void* layout = die.copy(std::vector<Layout>{l});
  void* plan = die.zeros(sizes.plan);
  void* abort = die.zeros(64);
  void* status = die.zeros(64 * kBlocks);
  void* table = die.copy(std::vector<void*>{peer->memory()});
  void* hidden = die.copy(rows);
  void* out = die.zeros(rows.size() * sizeof(float));
  expect(die.run("asap_plan", status,
                 {layout, plan, die.copy(experts),
                  die.copy(std::vector<float>(experts.size(), 1.0f)), status, kNumTokens, 0, 1, 0}),
         "asap_plan");
  expect(die.run("asap_dispatch_send", status,
                 {layout, plan, hidden, table, abort, status, 0, 0, 0, kEpoch, 0, kTimeoutCycles}),
         "asap_dispatch_send");
  int code = kTimeout;
  while (code == kTimeout) {
    code =
        die.run("asap_combine_recv", status,
                {layout, plan, own->memory(), out, abort, status, 0, kEpoch, 0, kTimeoutCycles, 0});
  }
  expect(code, "asap_combine_recv");
  die.acl().copy(rows.data(), out, rows.size() * sizeof(float), Copy::device_to_host);
  for (const float value : rows) std::printf("%g ", static_cast<double>(value));
}

void serve(Die& die, const Layout& l, const Sizes& sizes, int to, int from) {
  const auto own = SharedBuffer::create(die.acl(), static_cast<std::size_t>(l.moe_bytes));
  const auto peer = SharedBuffer::open(die.acl(), exchange(to, from, own->key()));
  void* layout = die.copy(std::vector<Layout>{l});
  void* item = die.zeros(sizes.item);
  void* results = die.zeros(sizes.item);
  void* epochs = die.copy(std::vector<std::int64_t>{kEpoch});
  void* cursor = die.zeros(64);
  void* abort = die.zeros(64);
  void* status = die.zeros(64 * kBlocks);
  void* table = die.copy(std::vector<void*>{peer->memory()});
  int code = kIdle;
  while (code == kIdle) {
    code =
        die.run("asap_dispatch_recv", status,
                {layout, own->memory(), item, epochs, cursor, abort, status, 0, 0, kTimeoutCycles});
  }
  expect(code, "asap_dispatch_recv");
  die.run("test_scale_rows", status, {layout, item, results, 0, 0});
  expect(
      die.run("asap_combine_send", status, {layout, item, results, table, epochs, status, 0, 0, 0}),
      "asap_combine_send");
  std::array<char, 1> done{};
  if (read(from, done.data(), done.size()) != 0) throw std::runtime_error("unexpected message");
}

int run(char** argv) {
  Layout layout{};
  if (std::fread(&layout, sizeof(layout), 1, stdin) != 1) return 2;
  const Sizes sizes{std::strtoull(argv[3], nullptr, 10), std::strtoull(argv[4], nullptr, 10)};
  std::array<int, 2> down{}, up{};
  if (pipe(down.data()) != 0 || pipe(up.data()) != 0) return 2;
  const pid_t child = fork();
  const bool is_rank = child == 0;
  const int to = is_rank ? up[1] : down[1], from = is_rank ? down[0] : up[0];
  close(is_rank ? up[0] : down[0]);
  close(is_rank ? down[1] : up[1]);
  int failed = 0;
  try {
    Die die(argv[1], argv[2], is_rank ? 0 : 1);
    (is_rank ? attend : serve)(die, layout, sizes, to, from);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s: %s\n", is_rank ? "rank" : "device", failure.what());
    failed = 1;
  }
  std::fflush(stdout);
  if (is_rank) _exit(failed);
  close(to);
  int status = 0;
  waitpid(child, &status, 0);
  return failed != 0 || status != 0;
}

}  // namespace
}  // namespace asap::ascend

int main(int, char** argv) { return asap::ascend::run(argv); }
