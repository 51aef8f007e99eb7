// The scan as a torch.library operator: threads as torch is told.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "operator.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Below this many times per thread the second pass over time costs more than a thread saves.
constexpr int64_t kLeastSlice = 512;

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

// The operands of one call, kept alive and described to the kernel.
struct Operands {
    Tensor A, B, C, D, bias;
    scan::Scan s{};

    Operands(const Tensor& u, const Tensor& delta, const Tensor& A_, const Tensor& B_, const Tensor& C_,
             const MaybeTensor& D_, const MaybeTensor& z, const MaybeTensor& bias_, bool softplus) {
        TORCH_CHECK(u.dim() == 3 && delta.sizes() == u.sizes() && (!z || z->sizes() == u.sizes()),
                    "u, delta, z and out must have one shape, (batch, dim, length)");
        TORCH_CHECK(A_.dim() == 2 && A_.size(0) == u.size(1), "A must be (dim, state)");
        for (const MaybeTensor& t : {D_, bias_})
            TORCH_CHECK(!t || t->sizes() == at::IntArrayRef({u.size(1)}), "D and delta_bias must be (dim)");
        A = plain(A_), D = D_ ? plain(*D_) : Tensor(), bias = bias_ ? plain(*bias_) : Tensor();
        B = B_.dim() == 2 ? plain(B_) : B_, C = C_.dim() == 2 ? plain(C_) : C_;
        s.batch = u.size(0), s.channels = u.size(1), s.length = u.size(2), s.states = A.size(1);
        s.groups = B.dim() == 4 ? B.size(1) : C.dim() == 4 ? C.size(1) : 1;
        TORCH_CHECK(s.groups > 0 && s.channels % s.groups == 0 && fits(B, s) && fits(C, s),
                    "B and C must be (dim, state), (batch, state, length) or (batch, groups, state, "
                    "length), dim divisible by the groups");
        s.u = operand(u), s.delta = operand(delta);
        if (z) s.z = operand(*z);
        s.B = projection(B), s.C = projection(C);
        s.A = A.const_data_ptr<float>();
        s.D = D.defined() ? D.const_data_ptr<float>() : nullptr;
        s.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
        s.softplus = softplus;
    }

    void check_state(const Tensor& state) const {
        TORCH_CHECK(state.is_contiguous() && state.scalar_type() == at::kFloat &&
                        state.sizes() == at::IntArrayRef({s.batch, s.channels, s.states}),
                    "the state must be contiguous float32, (batch, dim, state)");
    }
};

void scan_out(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
              const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& bias, bool softplus,
              Tensor& out, Tensor& state) {
    Operands operands(u, delta, A, B, C, D, z, bias, softplus);
    operands.check_state(state);
    TORCH_CHECK(out.sizes() == u.sizes(), "u, delta, z and out must have one shape, (batch, dim, length)");
    scan::Scan& s = operands.s;
    s.out = operand(out);
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

// du, ddelta, dA, dB, dC, dD, dz, ddelta_bias and dinitial_state, in the dtypes of their operands.
// Those of absent operands are empty.
using Gradients = std::array<Tensor, 9>;
using GradientsTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

GradientsTuple as_tuple(const Gradients& g) { return {g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8]}; }

Gradients empty_gradients(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                          const Tensor& C, const MaybeTensor& D, const MaybeTensor& z,
                          const MaybeTensor& bias, const MaybeTensor& initial) {
    const auto like = [&](const MaybeTensor& t) { return t ? at::empty_like(*t) : at::empty({0}, u.options()); };
    return {like(u), like(delta), like(A), like(B), like(C), like(D), like(z), like(bias), like(initial)};
}

GradientsTuple scan_backward(const Tensor& dy, const MaybeTensor& dstate, const Tensor& u,
                             const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                             const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& bias,
                             bool softplus, const MaybeTensor& initial) {
    const Operands operands(u, delta, A, B, C, D, z, bias, softplus);
    const scan::Scan& s = operands.s;
    TORCH_CHECK(dy.sizes() == u.sizes(), "the gradient of y must have its shape");
    Gradients out = empty_gradients(u, delta, A, B, C, D, z, bias, initial);
    const Tensor state = fresh_state(u, A, initial), last = dstate ? plain(*dstate) : Tensor();
    operands.check_state(state);
    if (last.defined()) operands.check_state(last);

    // Threads that share a group sum B's and C's gradients apart.
    const int64_t pairs = s.batch * s.groups, blocks = scan::count_blocks(s);
    const int64_t threads = std::min<int64_t>(at::get_num_threads(), blocks);
    const bool apart = pairs < threads;
    const int64_t parts = apart ? threads : pairs, copies = apart ? threads : 1;
    const auto floats = u.options().dtype(at::kFloat);
    const auto sums = [&](const Tensor& t) {
        return t.dim() == 2 ? at::zeros({copies, s.batch, s.channels, s.states}, floats)
                            : at::zeros({copies, s.batch, s.groups, s.length, s.states}, floats);
    };
    Tensor dB = sums(B), dC = sums(C);
    Tensor dA = at::zeros({s.batch, s.channels, s.states}, floats), dinitial = at::zeros_like(dA);
    Tensor dD = at::zeros({s.batch, s.channels}, floats), dbias = at::zeros_like(dD);
    const auto run = [&](int64_t part) {
        scan::Gradient g{};
        g.y = operand(dy), g.state = last.defined() ? last.const_data_ptr<float>() : nullptr;
        g.u = operand(out[0]), g.delta = operand(out[1]);
        if (z) g.z = operand(out[6]);
        g.A = dA.data_ptr<float>(), g.initial = dinitial.data_ptr<float>();
        g.D = dD.data_ptr<float>(), g.bias = dbias.data_ptr<float>();
        g.B = dB[apart ? part : 0].data_ptr<float>(), g.C = dC[apart ? part : 0].data_ptr<float>();
        scan::run(s, g, blocks * part / parts, blocks * (part + 1) / parts, state.const_data_ptr<float>());
    };
    if (blocks > 0)
        at::parallel_for(0, parts, 1, [&](int64_t first, int64_t end) {
            for (int64_t i = first; i < end; ++i) run(i);
        });

    const auto reduced = [&](const Tensor& sum, Tensor& gradient) {
        const Tensor total = sum.sum(0);
        gradient.copy_(gradient.dim() == 2   ? total.sum(0)
                       : gradient.dim() == 3 ? total.squeeze(1).transpose(-1, -2)
                                             : total.transpose(-1, -2));
    };
    reduced(dB, out[3]), reduced(dC, out[4]);
    out[2].copy_(dA.sum(0));
    if (D) out[5].copy_(dD.sum(0));
    if (bias) out[7].copy_(dbias.sum(0));
    if (initial) out[8].copy_(dinitial);
    return as_tuple(out);
}

GradientsTuple scan_backward_meta(const Tensor&, const MaybeTensor&, const Tensor& u, const Tensor& delta,
                                  const Tensor& A, const Tensor& B, const Tensor& C, const MaybeTensor& D,
                                  const MaybeTensor& z, const MaybeTensor& bias, bool,
                                  const MaybeTensor& initial) {
    return as_tuple(empty_gradients(u, delta, A, B, C, D, z, bias, initial));
}

// The operators as autograd calls them.
auto scan_operator() {
    static auto found = c10::Dispatcher::singleton()
                            .findSchemaOrThrow(SCAN_NAME("scan"), "")
                            .typed<decltype(scan_new)>();
    return found;
}

auto backward_operator() {
    static auto found = c10::Dispatcher::singleton()
                            .findSchemaOrThrow(SCAN_NAME("scan_backward"), "")
                            .typed<decltype(scan_backward)>();
    return found;
}

struct DifferentiableScan : torch::autograd::Function<DifferentiableScan> {
    static variable_list forward(AutogradContext* context, const Tensor& u, const Tensor& delta,
                                 const Tensor& A, const Tensor& B, const Tensor& C, const MaybeTensor& D,
                                 const MaybeTensor& z, const MaybeTensor& bias, bool softplus,
                                 const MaybeTensor& initial) {
        at::AutoDispatchBelowADInplaceOrView below;
        const auto kept = [](const MaybeTensor& t) { return t ? *t : Tensor(); };
        context->save_for_backward({u, delta, A, B, C, kept(D), kept(z), kept(bias), kept(initial)});
        context->saved_data["softplus"] = softplus;
        context->set_materialize_grads(false);
        const auto [y, state] = scan_operator().call(u, delta, A, B, C, D, z, bias, softplus, initial);
        return {y, state};
    }

    static variable_list backward(AutogradContext* context, variable_list gradients) {
        const auto v = context->get_saved_variables();
        const auto maybe = [](const Tensor& t) { return t.defined() ? MaybeTensor(t) : std::nullopt; };
        const Tensor dy = gradients[0].defined() ? gradients[0] : at::zeros_like(v[0]);
        const bool softplus = context->saved_data["softplus"].toBool();
        const auto [u, delta, A, B, C, D, z, bias, initial] = backward_operator().call(
            dy, maybe(gradients[1]), v[0], v[1], v[2], v[3], v[4], maybe(v[5]), maybe(v[6]), maybe(v[7]),
            softplus, maybe(v[8]));
        const auto given = [](const Tensor& gradient, const Tensor& operand) {
            return operand.defined() ? gradient : Tensor();
        };
        return {u, delta, A, B, C, given(D, v[5]), given(z, v[6]), given(bias, v[7]), Tensor(),
                given(initial, v[8])};
    }
};

std::tuple<Tensor, Tensor> scan_autograd(const Tensor& u, const Tensor& delta, const Tensor& A,
                                         const Tensor& B, const Tensor& C, const MaybeTensor& D,
                                         const MaybeTensor& z, const MaybeTensor& bias, bool softplus,
                                         const MaybeTensor& initial) {
    const auto results = DifferentiableScan::apply(u, delta, A, B, C, D, z, bias, softplus, initial);
    return {results[0], results[1]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(SCAN_NAMESPACE, m) {
    m.def(
        "scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
        "Tensor? delta_bias, bool delta_softplus, Tensor? initial_state) -> (Tensor, Tensor)");
    m.def(
        "scan.out(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
        "Tensor? delta_bias, bool delta_softplus, *, Tensor(a!) out, Tensor(b!) state) "
        "-> ()");
    m.def(
        "scan_backward(Tensor dy, Tensor? dstate, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, "
        "Tensor? D, Tensor? z, Tensor? delta_bias, bool delta_softplus, Tensor? initial_state) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, CPU, m) {
    m.impl("scan", scan_new);
    m.impl("scan.out", scan_out);
    m.impl("scan_backward", scan_backward);
}

// Without the fallback a second derivative, or one through `out`, would be dropped in silence.
TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Autograd, m) {
    m.impl("scan", scan_autograd);
    for (const char* name : {"scan.out", "scan_backward"})
        m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Meta, m) {
    m.impl("scan", scan_meta);
    m.impl("scan.out", scan_out_meta);
    m.impl("scan_backward", scan_backward_meta);
}
