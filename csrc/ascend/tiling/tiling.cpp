// How a matrix product of the super kernel is cut for a die, from the toolkit's own tiling library,
// and how much memory the products want for themselves.
// Built by `make ascend` alone; it has never been compiled against a toolkit.
#include <cstdint>

#include "tiling/platform/platform_ascendc.h"
#include "tiling/tiling_api.h"

extern "C" std::int64_t asap_system_bytes() {
  return platform_ascendc::PlatformAscendCManager::GetInstance()->GetLibApiWorkSpaceSize();
}

// a [rows, inner] times b [columns, inner] transposed; types of both and of the result as the
// ElementType of csrc/ascend/host/tiling_library.hpp. 0, or 1 if there is no tiling, or 2 if it
// does not fit.
extern "C" int asap_tiling(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                           std::int64_t row_type, std::int64_t result_type, void* tiling,
                           std::int64_t num_bytes) {
  using matmul_tiling::CubeFormat;
  using matmul_tiling::DataType;
  using matmul_tiling::TPosition;
  constexpr DataType kTypes[] = {DataType::DT_FLOAT, DataType::DT_BF16, DataType::DT_FLOAT16,
                                 DataType::DT_INT8, DataType::DT_INT32};
  const DataType type = kTypes[row_type];
  matmul_tiling::MatmulApiTiling matmul(*platform_ascendc::PlatformAscendCManager::GetInstance());
  matmul.SetAType(TPosition::GM, CubeFormat::ND, type);
  matmul.SetBType(TPosition::GM, CubeFormat::ND, type, true);
  matmul.SetCType(TPosition::GM, CubeFormat::ND, kTypes[result_type]);
  matmul.SetBias(false);
  const auto m = static_cast<std::int32_t>(rows), n = static_cast<std::int32_t>(columns),
             k = static_cast<std::int32_t>(inner);
  matmul.SetShape(m, n, k);
  matmul.SetOrgShape(m, n, k);
  matmul.SetBufferSpace(-1, -1, -1);
  optiling::TCubeTiling made;
  if (matmul.GetTiling(made) == -1) return 1;
  if (static_cast<std::int64_t>(made.GetDataSize()) > num_bytes) return 2;
  made.SaveToBuffer(tiling, made.GetDataSize());
  return 0;
}
