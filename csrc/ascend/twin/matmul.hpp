// The matrix product of the high-level interface: C = A B or A B^T, from and to global memory.
#pragma once

#include "kernel_operator.h"

struct TCubeTiling {
  std::int32_t usedCoreNum, M, N, Ka, Kb, singleCoreM, singleCoreN, singleCoreK;
};

namespace AscendC {

enum class CubeFormat { ND, NZ };

template <TPosition position, CubeFormat format, class Type, bool is_transposed = false>
struct MatmulType {
  using T = Type;
  static constexpr bool isTrans = is_transposed;
};

template <class A, class B, class C>
class Matmul {
 public:
  void Init(const TCubeTiling*, TPipe* = nullptr) {}
  void SetOrgShape(std::int32_t, std::int32_t columns, std::int32_t inner) {
    org_columns_ = columns;
    org_inner_ = inner;
  }
  void SetSingleShape(std::int32_t rows, std::int32_t columns, std::int32_t inner) {
    rows_ = rows;
    columns_ = columns;
    inner_ = inner;
  }
  void SetTensorA(const GlobalTensor<typename A::T>& a, bool is_transposed = false) {
    if (is_transposed) throw twin::Fault("Matmul: a transposed A is not modelled");
    a_ = a;
  }
  void SetTensorB(const GlobalTensor<typename B::T>& b, bool is_transposed = false) {
    if (is_transposed != B::isTrans) throw twin::Fault("Matmul: B is declared the other way");
    b_ = b;
  }

  // Returns when C is in memory. Rows are computed one after the other; others run in between.
  void IterateAll(const GlobalTensor<typename C::T>& c) {
    twin::Core& core = twin::this_core();
    check(core, a_, static_cast<std::uint64_t>(rows_ - 1) * org_inner_ + inner_, "Matmul A");
    check(core, b_,
          B::isTrans ? static_cast<std::uint64_t>(columns_ - 1) * org_inner_ + inner_
                     : static_cast<std::uint64_t>(inner_ - 1) * org_columns_ + columns_,
          "Matmul B");
    check(core, c, static_cast<std::uint64_t>(rows_ - 1) * org_columns_ + columns_, "Matmul C");
    for (std::int32_t m = 0; m < rows_; ++m) {
      core.tick();
      for (std::int32_t n = 0; n < columns_; ++n) c.address()[m * org_columns_ + n] = product(m, n);
    }
  }
  void End() {}

 private:
  using Sum = std::conditional_t<std::is_integral_v<typename A::T>, std::int32_t, float>;

  template <class T>
  static void check(const twin::Core& core, const GlobalTensor<T>& tensor, std::uint64_t count,
                    const char* what) {
    core.memory.check(tensor.GetPhyAddr(), count * sizeof(T), what);
  }

  typename C::T product(std::int32_t m, std::int32_t n) const {
    const auto* a = a_.GetPhyAddr() + m * org_inner_;
    const auto* b = b_.GetPhyAddr() + (B::isTrans ? n * org_inner_ : n);
    const std::int32_t step = B::isTrans ? 1 : org_columns_;
    Sum sum = 0;
    for (std::int32_t k = 0; k < inner_; ++k) {
      if constexpr (std::is_integral_v<typename A::T>) {
        sum += static_cast<Sum>(a[k]) * static_cast<Sum>(b[k * step]);
      } else {
        sum += twin::widen(a[k]) * twin::widen(b[k * step]);
      }
    }
    if constexpr (std::is_integral_v<typename A::T>) {
      return sum;
    } else {
      return twin::narrow<typename C::T>(sum);
    }
  }

  GlobalTensor<typename A::T> a_;
  GlobalTensor<typename B::T> b_;
  std::int32_t rows_ = 0, columns_ = 0, inner_ = 0, org_columns_ = 0, org_inner_ = 0;
};

inline constexpr std::uint64_t kSystemWorkspaceBytes = 1024;

inline void SetSysWorkspace(GM_ADDR workspace) { twin::this_core().system_workspace = workspace; }
inline GM_ADDR GetSysWorkSpacePtr() { return twin::this_core().system_workspace; }

inline void init_products(TPipe*) {}
template <class Object, class... Others>
void init_products(TPipe* pipe, Object& object, const TCubeTiling* tiling, Others&&... others) {
  object.Init(tiling, pipe);
  init_products(pipe, std::forward<Others>(others)...);
}

// On a cube core this serves the products named here until the end: there is no second time.
template <class... ObjectsAndTilings>
void register_products(TPipe* pipe, GM_ADDR workspace, ObjectsAndTilings&&... objects) {
  twin::this_core().memory.check(workspace, kSystemWorkspaceBytes, "system workspace");
  pipe->register_products();
  init_products(pipe, std::forward<ObjectsAndTilings>(objects)...);
}

}  // namespace AscendC

#define REGIST_MATMUL_OBJ(pipe, workspace, ...) \
  AscendC::register_products(pipe, workspace, __VA_ARGS__)
