// The kernels on the twin, for tests through ctypes: sizes of private memory, and `asap_twin_run`.
#include <cstring>
#include <tuple>

#include "entry.cpp"

namespace {

using asap::twin::Cores;
using asap::twin::Fault;
using asap::twin::Launch;

// As an array of pointers to arguments, the way ACL launches.
template <class... Args>
std::function<void()> bound(void (*kernel)(Args...), void* const* pointers) {
  return [&]<std::size_t... n>(std::index_sequence<n...>) -> std::function<void()> {
    const std::tuple<Args...> args{*static_cast<Args*>(pointers[n])...};
    return [kernel, args] { std::apply(kernel, args); };
  }(std::index_sequence_for<Args...>{});
}

// Instead of a super kernel: expert x answers a row with (x + 1) times the row.
template <class T>
void scale_rows(const asap::Item& item, std::uint8_t* results, std::int64_t moe_device) {
  const asap::Layout& l = item.l;
  const auto* counts = reinterpret_cast<const std::int32_t*>(item.num_rows_E().GetPhyAddr());
  const T* from = reinterpret_cast<const T*>(item.rows());
  T* to = reinterpret_cast<T*>(results);
  const std::int64_t first = asap::first_place(l, moe_device);
  for (std::int64_t x = first; x < asap::first_place(l, moe_device + 1); ++x) {
    for (std::int64_t n = counts[x - first] * l.hidden; n > 0; --n) {
      *to++ = asap::twin::narrow<T>(asap::twin::widen(*from++) * static_cast<float>(x + 1));
    }
  }
}

}  // namespace

extern "C" void test_scale_rows(std::uint8_t* layout, std::uint8_t* bytes, std::uint8_t* results,
                                std::int64_t moe_device, std::int64_t row_type) {
  const asap::Item item{*reinterpret_cast<const asap::Layout*>(layout), bytes};
  if (row_type == asap::kFloat32) scale_rows<float>(item, results, moe_device);
  if (row_type == asap::kBfloat16) scale_rows<bfloat16_t>(item, results, moe_device);
  if (row_type == asap::kFloat16) scale_rows<half>(item, results, moe_device);
}

namespace {

struct Kernel {
  std::string name;
  Cores per_block;
  std::function<std::function<void()>(void* const*)> bind;
};

template <class... Args>
Kernel kernel(const char* name, Cores per_block, void (*function)(Args...)) {
  return {name, per_block, [=](void* const* args) { return bound(function, args); }};
}

const Kernel& kernel_of(const std::string& name) {
  static const Kernel kernels[] = {
      kernel("asap_plan", {1, 0}, asap_plan),
      kernel("asap_dispatch_send", {1, 0}, asap_dispatch_send),
      kernel("asap_dispatch_recv", {1, 0}, asap_dispatch_recv),
      kernel("asap_combine_send", {1, 0}, asap_combine_send),
      kernel("asap_combine_recv", {1, 0}, asap_combine_recv),
      kernel("asap_take_last_reply", {1, 0}, asap_take_last_reply),
      kernel("asap_super_kernel", {1, 1}, asap_super_kernel),
      kernel("asap_super_kernel_int8", {1, 1}, asap_super_kernel_int8),
      kernel("test_scale_rows", {1, 0}, test_scale_rows),
  };
  for (const Kernel& kernel : kernels) {
    if (kernel.name == name) return kernel;
  }
  throw Fault("no kernel " + name);
}

}  // namespace

extern "C" {

struct AsapTwinLaunch {
  const char* kernel;
  std::int32_t device, stream, after, num_blocks;
  void* const* args;
};

struct AsapTwinMemory {
  const void* begin;
  std::uint64_t num_bytes;
};

// Empty when all is well, or what went wrong; valid until this thread's next call.
const char* asap_twin_run(const AsapTwinLaunch* launches, std::int32_t num_launches,
                          const AsapTwinMemory* memory, std::int32_t num_memory, std::uint64_t seed,
                          std::uint64_t max_steps) {
  static thread_local std::string failure;
  failure.clear();
  try {
    asap::twin::Machine machine(seed);
    for (std::int32_t n = 0; n < num_memory; ++n) {
      machine.memory().add(memory[n].begin, memory[n].num_bytes);
    }
    for (std::int32_t n = 0; n < num_launches; ++n) {
      const AsapTwinLaunch& it = launches[n];
      const Kernel& kernel = kernel_of(it.kernel);
      machine.add({kernel.name, it.device, it.stream, it.after, it.num_blocks, kernel.per_block,
                   kernel.bind(it.args)});
    }
    machine.run(max_steps);
  } catch (const Fault& fault) {
    failure = fault.what();
  }
  return failure.c_str();
}

// Stands for csrc/ascend/tiling: products on the twin need none.
int asap_tiling(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, void* tiling,
                std::int64_t num_bytes) {
  std::memset(tiling, 0, static_cast<std::size_t>(num_bytes));
  return 0;
}

std::int64_t asap_system_bytes() { return AscendC::kSystemWorkspaceBytes; }

std::int64_t asap_plan_bytes(const asap::Layout* layout) {
  return asap::Plan(*layout, nullptr).carver.num_bytes;
}

std::int64_t asap_item_bytes(const asap::Layout* layout) {
  return asap::Item{*layout, nullptr}.num_bytes();
}

std::int64_t asap_item_rows(const asap::Layout* layout) {
  return reinterpret_cast<std::intptr_t>(asap::Item{*layout, nullptr}.rows());
}

std::int64_t asap_super_kernel_bytes(std::int64_t intermediate) {
  return asap::SuperKernel<float>::workspace_bytes(intermediate);
}

std::int64_t asap_super_kernel_int8_bytes(std::int64_t hidden, std::int64_t intermediate) {
  return asap::Int8SuperKernel<float>::workspace_bytes(hidden, intermediate);
}
}
