// Mamba-2's scan as a torch.library operator; its gradient is composed in Python (ops/ssd.py).
#pragma once
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <tuple>

#include "operator.h"

namespace {

// (batch, length, rows) as the kernel's (batch, rows, length).
scan::Operand transposed(const Tensor& t) { return operand(t.transpose(1, 2)); }

// x, z: (batch, length, heads * headdim). dt, decay: (batch, length, heads) float32, ready for use, the
// decay in base 2. B, C: (batch, length, groups * state). D: (heads * headdim). state: the first one.
std::tuple<Tensor, Tensor> ssd(const Tensor& x, const Tensor& dt_, const Tensor& decay_, const Tensor& B,
                               const Tensor& C, const MaybeTensor& D_, const MaybeTensor& z,
                               const Tensor& initial, int64_t groups) {
    TORCH_CHECK(x.dim() == 3 && dt_.dim() == 3 && initial.dim() == 4 && groups > 0, "unexpected dimensions");
    const int64_t batch = x.size(0), length = x.size(1), heads = dt_.size(2);
    const int64_t headdim = initial.size(2), states = initial.size(3);
    TORCH_CHECK(x.size(2) == heads * headdim && heads % groups == 0 && (!z || z->sizes() == x.sizes()),
                "x and z must be (batch, length, heads * headdim), heads divisible by the groups");
    for (const Tensor& t : {dt_, decay_})
        TORCH_CHECK(t.sizes() == at::IntArrayRef({batch, length, heads}), "dt must be (batch, length, heads)");
    for (const Tensor& t : {B, C})
        TORCH_CHECK(t.sizes() == at::IntArrayRef({batch, length, groups * states}),
                    "B and C must be (batch, length, groups * state)");
    TORCH_CHECK(initial.sizes() == at::IntArrayRef({batch, heads, headdim, states}) &&
                    (!D_ || D_->sizes() == at::IntArrayRef({heads * headdim})),
                "the state must be (batch, heads, headdim, state) and D (heads * headdim)");
    const Tensor dt = plain(dt_), decay = plain(decay_), D = D_ ? plain(*D_) : Tensor();
    Tensor out = at::empty(x.sizes(), x.options()), state = initial.to(at::kFloat, false, true).contiguous();
    use_huge_pages(out);
    const scan::Ssd s{batch, heads, headdim, length, states, groups, transposed(x),
                      z ? transposed(*z) : scan::Operand{}, transposed(out), transposed(B), transposed(C),
                      dt.const_data_ptr<float>(), decay.const_data_ptr<float>(),
                      D.defined() ? D.const_data_ptr<float>() : nullptr};
    at::parallel_for(0, scan::count_blocks(s), grain(length * states), [&](int64_t first, int64_t last) {
        scan::run(s, first, last, state.data_ptr<float>());
    });
    return {out, state};
}

std::tuple<Tensor, Tensor> ssd_meta(const Tensor& x, const Tensor&, const Tensor&, const Tensor&,
                                    const Tensor&, const MaybeTensor&, const MaybeTensor&,
                                    const Tensor& initial, int64_t) {
    return {at::empty_symint(x.sym_sizes(), x.options()),
            at::empty_symint(initial.sym_sizes(), initial.options().dtype(at::kFloat))};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(SCAN_NAMESPACE, m) {
    m.def(
        "ssd(Tensor x, Tensor dt, Tensor decay, Tensor B, Tensor C, Tensor? D, Tensor? z, "
        "Tensor initial_state, int groups) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, CPU, m) { m.impl("ssd", ssd); }

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Autograd, m) {
    m.impl("ssd", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Meta, m) { m.impl("ssd", ssd_meta); }
