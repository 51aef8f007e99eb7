// The causal depthwise convolution in front of the scan, with its bias and SiLU, in one pass: y[t] =
// silu(bias + sum over k of w[k] x[t - width + 1 + k]). Read and written where it lies, whichever of
// channels and time is contiguous, so the model's transposes cost nothing.
#include <array>
#include <memory>

#include "block.h"
#include "scan.h"
#include "tile.h"
#include "vec.h"

namespace scan {
namespace {

// One tile of outputs; x starts `history` times before it, fewer at the start of the sequence.
template <int width>
void convolve(const Conv& c, Rows x, int history, int times, const float* weight, Vec bias, Rows y,
              const std::array<Ahead, 2>& ahead) {
    const int taps = width ? width : static_cast<int>(c.width);
    for (int t = 0; t < times; ++t) {
        for (const Ahead& lines : ahead) lines.fetch(t);
        Vec sum = bias;
        const int now = t + history, first = std::max(0, taps - 1 - now);
#pragma GCC unroll 4
        for (int k = 0; k < taps; ++k)
            if (k >= first) sum += load(weight + k * kLanes) * x[now - taps + 1 + k];
        y.set(t, c.silu ? silu(sum) : sum);
    }
}

}  // namespace

int64_t count_blocks(const Conv& c) { return c.batch * blocks_per_group(c.channels, 1); }

void run(const Conv& c, int64_t first, int64_t last) {
    alignas(64) float in[kTile * kLanes], out[kTile * kLanes];
    const std::unique_ptr<float[]> weight(new float[c.width * kLanes]);
    const int64_t reach = c.width - 1, step = kTile - reach, per_batch = blocks_per_group(c.channels, 1);
    const auto kernel = c.width == 4 ? convolve<4> : convolve<0>;
    while (first < last) {
        // Neighbouring blocks go through each tile of time together: they share its pages.
        const int64_t end = std::min(last, (first / per_batch + 1) * per_batch);
        for (int64_t t = 0; t < c.length; t += step)
            for (int64_t i = first; i < end; ++i) {
                const Block b = find_block(c.channels, 1, i);
                const int times = static_cast<int>(std::min(step, c.length - t));
                const int history = static_cast<int>(std::min(reach, t));
                gather_rows(c.weight, c.width, b, weight.get());
                const Rows x = load_rows(c.x, b.batch, b.channel, b.lanes, t - history, times + history, in);
                const int64_t next = b.channel + kLanes;
                kernel(c, x, history, times, weight.get(), gather_channels(c.bias, b), {out, kLanes},
                       {ahead(c.x, b.batch, next, t), ahead(c.out, b.batch, next, t)});
                store_rows(c.out, b.batch, b.channel, b.lanes, t, times, out);
            }
        first = end;
    }
}

}  // namespace scan
