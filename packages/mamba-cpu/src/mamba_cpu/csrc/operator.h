// From tensors to what the kernels take. Shapes and dtypes are checked in Python, where an error can
// say what to do about it; what is checked again here is what would otherwise read or write outside
// a tensor.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "scan.h"

// An operator of this build by its full name.
#define SCAN_QUOTED(x) #x
#define SCAN_QUOTE(x) SCAN_QUOTED(x)
#define SCAN_NAME(name) SCAN_QUOTE(SCAN_NAMESPACE) "::" name

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

inline scan::Operand operand(const Tensor& t) {
    const auto type = t.scalar_type() == at::kBFloat16 ? scan::Type::bfloat16
                      : t.scalar_type() == at::kHalf   ? scan::Type::float16
                                                       : scan::Type::float32;
    TORCH_CHECK(type != scan::Type::float32 || t.scalar_type() == at::kFloat, "unexpected dtype");
    return {t.data_ptr(), type, t.stride(0), t.stride(-2), t.stride(-1)};
}

inline Tensor plain(const Tensor& t) { return t.to(at::kFloat).contiguous(); }

// Pages of 2 MiB: at 4 KiB each, faulting in a fresh output takes longer than the scan itself.
inline void use_huge_pages(const Tensor& t) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = 2 << 20;
    const auto begin = reinterpret_cast<uintptr_t>(t.data_ptr());
    const uintptr_t first = (begin + page - 1) / page * page, last = (begin + t.nbytes()) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// Blocks that a thread should at least get: waking it up costs as much as this many exponentials.
inline int64_t grain(int64_t per_block) { return std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, per_block)); }
