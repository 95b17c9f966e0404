#include "asap/rows.hpp"

#include <concepts>
#include <cstring>
#include <stdexcept>

#include "asap/errors.hpp"
#include "row_kernels.hpp"

namespace asap {
namespace {

// Call `visit` with the kernels and one value of each element type. An instance computes in float32
// or in the type that travels, so the two 16-bit types never meet.
template <class Visit>
void with_types(RowType to, RowType from, Visit visit) {
  with_kernels([&](auto kernels) {
    with_element(to, [&]<class To>(To) {
      with_element(from, [&]<class From>(From) {
        if constexpr (std::same_as<To, From> || std::same_as<To, Float32> ||
                      std::same_as<From, Float32>) {
          visit(kernels, To{}, From{});
        } else {
          throw std::logic_error("rows of two different 16-bit types");
        }
      });
    });
  });
}

bool streams(const Rows& to, Store store) {
  return store == Store::streamed && to.row_bytes() % kLineBytes == 0 &&
         reinterpret_cast<std::uintptr_t>(to.bytes) % kLineBytes == 0;
}

// to[n] = from[index_of(n)].
template <class IndexOf>
void move_rows(const Rows& to, const Rows& from, std::int64_t count, Store store,
               IndexOf index_of) {
  if (to.type != from.type) {
    with_types(to.type, from.type, [&]<class To, class From>(auto kernels, To, From) {
      for (std::int64_t n = 0; n < count; ++n) {
        kernels.convert(reinterpret_cast<To*>(to.row(n)),
                        reinterpret_cast<const From*>(from.row(index_of(n))), to.hidden);
      }
    });
    return;
  }
  const std::int64_t row_bytes = to.row_bytes();
  with_kernels([&](auto kernels) {
    if (!streams(to, store)) {
      for (std::int64_t n = 0; n < count; ++n) {
        std::memcpy(to.row(n), from.row(index_of(n)), static_cast<std::size_t>(row_bytes));
      }
      return;
    }
    for (std::int64_t n = 0; n < count; ++n) {
      kernels.stream(to.row(n), from.row(index_of(n)), row_bytes);
    }
    kernels.finish_streams();
  });
}

}  // namespace

RowType row_type_of(std::string_view name) {
  if (name == "float32") return RowType::float32;
  if (name == "bfloat16") return RowType::bfloat16;
  ASAP_CHECK(name == "float16", "row type '", name, "'; known: float32, bfloat16, float16");
  return RowType::float16;
}

void gather_rows(const Rows& to, const Rows& from, std::span<const std::int32_t> idx, Store store) {
  move_rows(to, from, std::ssize(idx), store,
            [&](std::int64_t n) { return idx[static_cast<std::size_t>(n)]; });
}

void copy_rows(const Rows& to, const Rows& from, std::int64_t count, Store store) {
  move_rows(to, from, count, store, [](std::int64_t n) { return n; });
}

void sum_rows(const Rows& to, const Rows& from, std::span<const std::int32_t> begin,
              std::span<const Term> terms) {
  const auto terms_of = [&](std::int64_t n) {
    const auto first = static_cast<std::size_t>(begin[static_cast<std::size_t>(n)]);
    const auto end = static_cast<std::size_t>(begin[static_cast<std::size_t>(n + 1)]);
    return terms.subspan(first, end - first);
  };
  with_types(to.type, from.type, [&]<class To, class From>(auto kernels, To, From) {
    const auto* rows = reinterpret_cast<const From*>(from.bytes);
    for (std::int64_t n = 0; n + 1 < std::ssize(begin); ++n) {
      const auto summands = terms_of(n);
      if (summands.empty()) {
        std::memset(to.row(n), 0, static_cast<std::size_t>(to.row_bytes()));
      } else {
        kernels.sum(reinterpret_cast<To*>(to.row(n)), rows, to.hidden, summands);
      }
    }
  });
}

}  // namespace asap
