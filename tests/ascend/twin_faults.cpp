// Small kernels, each wrong in one way, and what the twin must say. `twin_fault(name, seed)`.
#include <functional>
#include <map>
#include <string>

#include "kernel_operator.h"

namespace {

using namespace AscendC;

constexpr std::uint32_t kCount = 16;
alignas(512) std::int32_t memory[1024];

using Buffer = TBuf<TPosition::VECCALC>;

LocalTensor<std::int32_t> local(TPipe& pipe, std::uint32_t num_bytes = 512) {
  Buffer buffer;
  pipe.InitBuffer(buffer, num_bytes);
  return buffer.Get<std::int32_t>();
}

GlobalTensor<std::int32_t> global() {
  GlobalTensor<std::int32_t> tensor;
  tensor.SetGlobalBuffer(memory);
  return tensor;
}

using Rows = MatmulType<TPosition::GM, CubeFormat::ND, float>;
using Product = Matmul<Rows, Rows, Rows>;

void register_product(TPipe& pipe) {
  Product product;
  TCubeTiling tiling{};
  SetSysWorkspace(reinterpret_cast<GM_ADDR>(memory));
  REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
}

template <HardEvent event>
void order() {
  SetFlag<event>(EVENT_ID0);
  WaitFlag<event>(EVENT_ID0);
}

void fill(const LocalTensor<std::int32_t>& tensor) {
  for (std::uint32_t n = 0; n < kCount; ++n) tensor.SetValue(n, 1);
}

const std::map<std::string, std::function<void(TPipe&)>> kKernels{
    {"nothing wrong",
     [](TPipe& pipe) {
       const auto tensor = local(pipe);
       DataCopy(tensor, global(), kCount);
       order<HardEvent::MTE2_V>();
       Adds(tensor, tensor, 1, kCount);
       order<HardEvent::V_MTE3>();
       DataCopy(global(), tensor, kCount);
     }},
    {"copied out while copied in",
     [](TPipe& pipe) {
       const auto tensor = local(pipe);
       DataCopy(tensor, global(), kCount);
       DataCopy(global(), tensor, kCount);
     }},
    {"filled while copied out",
     [](TPipe& pipe) {
       const auto tensor = local(pipe);
       fill(tensor);
       order<HardEvent::S_MTE3>();
       DataCopy(global(), tensor, kCount);
       DataCopy(tensor, global(), kCount);
     }},
    {"scalar write not ordered",
     [](TPipe& pipe) {
       const auto tensor = local(pipe);
       fill(tensor);
       DataCopy(global(), tensor, kCount);
     }},
    {"scalar read not ordered",
     [](TPipe& pipe) {
       const auto tensor = local(pipe);
       DataCopy(tensor, global(), kCount);
       tensor.GetValue(0);
     }},
    {"vector after vector",
     [](TPipe& pipe) {
       const auto tensor = local(pipe);
       Duplicate(tensor, 1, kCount);
       Adds(tensor, tensor, 1, kCount);
     }},
    {"nothing written", [](TPipe& pipe) { DataCopy(global(), local(pipe), kCount); }},
    {"buffer too large", [](TPipe& pipe) { local(pipe, 192 << 10); }},
    {"access behind the end", [](TPipe& pipe) { local(pipe, 32).SetValue(8, 1); }},
    {"not a multiple of 32 bytes", [](TPipe& pipe) { DataCopy(local(pipe), global(), 5); }},
    {"local side not aligned", [](TPipe& pipe) { DataCopy(local(pipe)[1], global(), kCount); }},
    {"outside every allocation",
     [](TPipe& pipe) { DataCopy(local(pipe), global()[1020], kCount); }},
    {"flag set twice",
     [](TPipe&) {
       SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
       SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
     }},
    {"flag never set", [](TPipe&) { WaitFlag<HardEvent::MTE2_V>(EVENT_ID0); }},
    {"flag never waited for", [](TPipe&) { SetFlag<HardEvent::MTE2_V>(EVENT_ID0); }},
    {"reserved event", [](TPipe&) { SetFlag<HardEvent::MTE2_V>(6); }},
    {"atomic left on", [](TPipe&) { SetAtomicAdd<std::int32_t>(); }},
    {"dirty cache", [](TPipe&) { global().SetValue(0, 1); }},
    {"stale cache",
     [](TPipe& pipe) {
       const auto tensor = local(pipe);
       global().GetValue(0);
       SyncAll();
       if (GetBlockIdx() == 0) {
         Duplicate(tensor, 1, kCount);
         order<HardEvent::V_MTE3>();
         DataCopy(global(), tensor, kCount);
       }
       while (GetBlockIdx() == 1 && global().GetValue(0) == 0) {
       }
     }},
    {"stale cache of the launch before",
     [](TPipe& pipe) {
       const bool is_first = ReadGmByPassDCache(&memory[32]) == 0;
       SyncAll();
       const auto tensor = local(pipe);
       global().GetValue(32);
       if (is_first && GetBlockIdx() == 0) {
         Duplicate(tensor, 1, kCount);
         order<HardEvent::V_MTE3>();
         DataCopy(global()[32], tensor, kCount);
       }
       while (!is_first && global().GetValue(32) == 0) {
       }
     }},
    {"cleaned and not awaited",
     [](TPipe&) {
       global().SetValue(0, 1);
       DataCacheCleanAndInvalid<std::int32_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(
           global());
     }},
    {"block that does not come",
     [](TPipe&) {
       if (GetBlockIdx() == 0) SyncAll();
     }},
    {"products after a buffer",
     [](TPipe& pipe) {
       local(pipe);
       register_product(pipe);
     }},
    {"products in two calls",
     [](TPipe& pipe) {
       register_product(pipe);
       register_product(pipe);
     }},
    {"products without their memory",
     [](TPipe& pipe) {
       Product product;
       TCubeTiling tiling{};
       REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
     }},
};

}  // namespace

extern "C" const char* twin_fault(const char* name, std::uint64_t seed) {
  static std::string message;
  message.clear();
  std::fill(std::begin(memory), std::end(memory), 0);
  asap::twin::Machine machine(seed);
  machine.memory().add(memory, sizeof(memory));
  try {
    for (int launch = 0; launch < 2; ++launch) {
      machine.add({name, 0, 0, -1, 2, {1, 0}, [kernel = kKernels.at(name)] {
                     TPipe pipe;
                     kernel(pipe);
                   }});
    }
    machine.run(100'000);
  } catch (const asap::twin::Fault& fault) {
    message = fault.what();
  }
  return message.c_str();
}
