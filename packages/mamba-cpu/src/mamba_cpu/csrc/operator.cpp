// The kernel as a torch.library operator: tensors in, plain pointers out, threads as torch is told.
//
// Shapes and dtypes are checked in ops.py, where an error can say what to do about it; what is
// checked again here is what would otherwise read or write outside a tensor.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "scan.h"

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// Below this many times per thread the second pass over time costs more than a thread saves.
constexpr int64_t kLeastSlice = 512;

scan::Operand operand(const Tensor& t) {
    const auto type = t.scalar_type() == at::kBFloat16 ? scan::Type::bfloat16
                      : t.scalar_type() == at::kHalf   ? scan::Type::float16
                                                       : scan::Type::float32;
    TORCH_CHECK(type != scan::Type::float32 || t.scalar_type() == at::kFloat, "unexpected dtype");
    return {t.data_ptr(), type, t.stride(0), t.stride(-2), t.stride(-1)};
}

scan::Projection projection(const Tensor& t) {
    scan::Projection p;
    if (t.dim() == 2) {
        p.constant = t.const_data_ptr<float>();
        return p;
    }
    p.rows = operand(t);
    p.group = t.dim() == 4 ? t.stride(1) : 0;
    return p;
}

Tensor plain(const Tensor& t) { return t.to(at::kFloat).contiguous(); }

// Pages of 2 MiB: at 4 KiB each, faulting in a fresh output takes longer than the scan itself.
void use_huge_pages(const Tensor& t) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = 2 << 20;
    const auto begin = reinterpret_cast<uintptr_t>(t.data_ptr());
    const uintptr_t first = (begin + page - 1) / page * page, last = (begin + t.nbytes()) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// Blocks that a thread should at least get: waking it up costs as much as this many exponentials.
int64_t grain(int64_t per_block) { return std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, per_block)); }

void run_blocks(const scan::Scan& s, float* state) {
    at::parallel_for(0, scan::count_blocks(s), grain(s.length * s.states), [&](int64_t first, int64_t last) {
        scan::run(s, first, last, 0, s.length, state, nullptr);
    });
}

// Too few channels to occupy the threads: cut time into one slice more than there are threads.
// The first pass finds how each slice but the last moves the state (slice 0, whose first state is
// known, is finished at once); then the first state of every other slice is known and they run.
// False, with the state as it was, if something is not finite: exp(A * sum of delta) may overflow or
// underflow where no single exp(A * delta) does, and 0 * inf is then not what the recurrence gives.
bool run_slices(const scan::Scan& s, int64_t threads, Tensor& state) {
    const int64_t blocks = scan::count_blocks(s), slices = threads + 1;
    const auto from = [&](int64_t slice) { return s.length * slice / slices; };
    Tensor states = at::zeros({slices, state.numel()}, state.options());
    Tensor decays = at::zeros({slices, state.numel()}, state.options());
    states[0].copy_(state.flatten());
    const auto part = [&](int64_t slice, bool emit) {
        float* decay = emit ? nullptr : decays[slice].data_ptr<float>();
        scan::run(s, 0, blocks, from(slice), from(slice + 1), states[slice].data_ptr<float>(), decay);
    };
    at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) part(i, i == 0);
    });
    // states[i] is now where slice i ends: from the true state for 0, from zero for the others.
    Tensor entry = states[0].clone();
    for (int64_t i = 1; i < slices; ++i) {
        Tensor exit = i + 1 < slices ? decays[i] * entry + states[i] : entry;
        states[i].copy_(entry);
        entry = exit;
    }
    at::parallel_for(1, slices, 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) part(i, true);
    });
    if (!at::isfinite(states).all().item<bool>() || !at::isfinite(decays).all().item<bool>()) return false;
    state.copy_(states[threads].view_as(state));
    return true;
}

bool fits(const Tensor& projection, const scan::Scan& s) {
    const auto shape = projection.sizes();
    return shape == at::IntArrayRef({s.channels, s.states}) ||
           shape == at::IntArrayRef({s.batch, s.states, s.length}) ||
           shape == at::IntArrayRef({s.batch, s.groups, s.states, s.length});
}

void scan_out(const Tensor& u, const Tensor& delta, const Tensor& A_, const Tensor& B_,
              const Tensor& C_, const MaybeTensor& D_, const MaybeTensor& z, const MaybeTensor& bias_,
              bool softplus, Tensor& out, Tensor& state) {
    TORCH_CHECK(u.dim() == 3 && delta.sizes() == u.sizes() && out.sizes() == u.sizes() &&
                    (!z || z->sizes() == u.sizes()),
                "u, delta, z and out must have one shape, (batch, dim, length)");
    TORCH_CHECK(A_.dim() == 2 && A_.size(0) == u.size(1), "A must be (dim, state)");
    for (const MaybeTensor& t : {D_, bias_})
        TORCH_CHECK(!t || t->sizes() == at::IntArrayRef({u.size(1)}), "D and delta_bias must be (dim)");
    TORCH_CHECK(state.is_contiguous() && state.scalar_type() == at::kFloat &&
                    state.sizes() == at::IntArrayRef({u.size(0), u.size(1), A_.size(1)}),
                "the state must be contiguous float32, (batch, dim, state)");
    const Tensor A = plain(A_), D = D_ ? plain(*D_) : Tensor(), bias = bias_ ? plain(*bias_) : Tensor();
    const Tensor B = B_.dim() == 2 ? plain(B_) : B_, C = C_.dim() == 2 ? plain(C_) : C_;
    scan::Scan s{};
    s.batch = u.size(0), s.channels = u.size(1), s.length = u.size(2), s.states = A.size(1);
    s.groups = B.dim() == 4 ? B.size(1) : C.dim() == 4 ? C.size(1) : 1;
    TORCH_CHECK(s.groups > 0 && s.channels % s.groups == 0 && fits(B, s) && fits(C, s),
                "B and C must be (dim, state), (batch, state, length) or (batch, groups, state, length), "
                "dim divisible by the groups");
    s.u = operand(u), s.delta = operand(delta), s.out = operand(out);
    if (z) s.z = operand(*z);
    s.B = projection(B), s.C = projection(C);
    s.A = A.const_data_ptr<float>();
    s.D = D.defined() ? D.const_data_ptr<float>() : nullptr;
    s.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
    s.softplus = softplus;

    const int64_t blocks = scan::count_blocks(s);
    const int64_t threads = std::min<int64_t>(at::get_num_threads(), s.length / kLeastSlice);
    if (blocks * 2 > threads || !run_slices(s, threads, state)) run_blocks(s, state.data_ptr<float>());
}

Tensor fresh_state(const Tensor& u, const Tensor& A, const MaybeTensor& initial) {
    if (initial) return initial->to(at::kFloat, false, true).contiguous();
    return at::zeros({u.size(0), u.size(1), A.size(1)}, u.options().dtype(at::kFloat));
}

std::tuple<Tensor, Tensor> scan_new(const Tensor& u, const Tensor& delta, const Tensor& A,
                                    const Tensor& B, const Tensor& C, const MaybeTensor& D,
                                    const MaybeTensor& z, const MaybeTensor& bias, bool softplus,
                                    const MaybeTensor& initial) {
    Tensor out = at::empty_like(u), state = fresh_state(u, A, initial);
    use_huge_pages(out);
    scan_out(u, delta, A, B, C, D, z, bias, softplus, out, state);
    return {out, state};
}

std::tuple<Tensor, Tensor> scan_meta(const Tensor& u, const Tensor&, const Tensor& A, const Tensor&,
                                     const Tensor&, const MaybeTensor&, const MaybeTensor&,
                                     const MaybeTensor&, bool, const MaybeTensor&) {
    return {at::empty_like(u), at::empty_symint({u.sym_size(0), u.sym_size(1), A.sym_size(1)},
                                                u.options().dtype(at::kFloat))};
}

void scan_out_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, bool, Tensor&, Tensor&) {}

Tensor conv_new(const Tensor& x, const Tensor& weight_, const MaybeTensor& bias_, bool silu) {
    TORCH_CHECK(x.dim() == 3 && weight_.dim() == 2 && weight_.size(0) == x.size(1) &&
                    weight_.size(1) >= 1 && weight_.size(1) <= scan::kWidest,
                "x must be (batch, dim, length) and weight (dim, width), width at most ", scan::kWidest);
    TORCH_CHECK(!bias_ || bias_->sizes() == at::IntArrayRef({x.size(1)}), "bias must be (dim)");
    const Tensor weight = plain(weight_), bias = bias_ ? plain(*bias_) : Tensor();
    Tensor out = at::empty_like(x);
    use_huge_pages(out);
    const scan::Conv c{x.size(0), x.size(1), x.size(2), weight.size(1), operand(x), operand(out),
                       weight.const_data_ptr<float>(),
                       bias.defined() ? bias.const_data_ptr<float>() : nullptr, silu};
    at::parallel_for(0, scan::count_blocks(c), grain(c.length),
                     [&](int64_t first, int64_t last) { scan::run(c, first, last); });
    return out;
}

Tensor conv_meta(const Tensor& x, const Tensor&, const MaybeTensor&, bool) {
    return at::empty_like(x);
}

}  // namespace

// A namespace for each instruction set, so that two builds can be loaded and compared.
TORCH_LIBRARY(SCAN_NAMESPACE, m) {
    m.def(
        "scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
        "Tensor? delta_bias, bool delta_softplus, Tensor? initial_state) -> (Tensor, Tensor)");
    m.def(
        "scan.out(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
        "Tensor? delta_bias, bool delta_softplus, *, Tensor(a!) out, Tensor(b!) state) "
        "-> ()");
    m.def("causal_conv1d(Tensor x, Tensor weight, Tensor? bias, bool silu) -> Tensor");
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, CPU, m) {
    m.impl("scan", scan_new);
    m.impl("scan.out", scan_out);
    m.impl("causal_conv1d", conv_new);
}

// Without it a tangent of forward-mode differentiation would be dropped in silence.
TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Autograd, m) {
    for (const char* name : {"scan", "scan.out", "causal_conv1d"})
        m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Meta, m) {
    m.impl("scan", scan_meta);
    m.impl("scan.out", scan_out_meta);
    m.impl("causal_conv1d", conv_meta);
}
