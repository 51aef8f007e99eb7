// The causal convolution as a torch.library operator.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "operator.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

auto conv_operator() {
    static auto found = c10::Dispatcher::singleton()
                            .findSchemaOrThrow(SCAN_NAME("causal_conv1d"), "")
                            .typed<decltype(conv_new)>();
    return found;
}

// With p the convolution before SiLU: dx is p's gradient convolved backwards in time, and dweight[k]
// its product with x, k times apart.
struct DifferentiableConv : torch::autograd::Function<DifferentiableConv> {
    static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                          const MaybeTensor& bias, bool silu) {
        at::AutoDispatchBelowADInplaceOrView below;
        context->save_for_backward({x, weight, bias ? *bias : Tensor()});
        context->saved_data["silu"] = silu;
        return conv_operator().call(x, weight, bias, silu);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients) {
        const auto saved = context->get_saved_variables();
        const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
        const MaybeTensor maybe_bias = bias.defined() ? MaybeTensor(bias) : std::nullopt;
        Tensor dp = gradients[0];
        if (context->saved_data["silu"].toBool()) {
            const Tensor p = conv_operator().call(x.to(at::kFloat), weight, maybe_bias, false);
            const Tensor gate = p.sigmoid();
            dp = dp.to(at::kFloat) * (gate * (1 + p * (1 - gate)));
        }
        const Tensor dx = conv_operator().call(dp.flip(-1), weight, std::nullopt, false).flip(-1);
        std::vector<Tensor> taps;
        const c10::SymInt length = x.sym_size(2);
        for (int64_t width = weight.size(1), k = 0; k < width; ++k) {
            const c10::SymInt shift = std::min(c10::SymInt(width - 1 - k), length);
            taps.push_back((dp.narrow_symint(2, shift, length - shift).to(at::kFloat) *
                            x.narrow_symint(2, 0, length - shift).to(at::kFloat))
                               .sum({0, 2}));
        }
        return {dx.to(x.scalar_type()), at::stack(taps, 1).to(weight.scalar_type()),
                bias.defined() ? dp.to(at::kFloat).sum({0, 2}).to(bias.scalar_type()) : Tensor(), Tensor()};
    }
};

Tensor conv_autograd(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, bool silu) {
    return DifferentiableConv::apply(x, weight, bias, silu);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(SCAN_NAMESPACE, m) {
    m.def("causal_conv1d(Tensor x, Tensor weight, Tensor? bias, bool silu) -> Tensor");
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, CPU, m) { m.impl("causal_conv1d", conv_new); }

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Autograd, m) {
    m.impl("causal_conv1d", conv_autograd);
}

TORCH_LIBRARY_IMPL(SCAN_NAMESPACE, Meta, m) { m.impl("causal_conv1d", conv_meta); }
