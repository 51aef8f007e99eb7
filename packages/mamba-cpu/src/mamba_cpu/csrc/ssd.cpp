// Mamba-2's scan: the channels of a head lie across the lanes, and all of them decay alike. So within a
// tile the state can be kept as it would be without any decay: x[t] is divided by the decay since the
// tile's beginning, y[t] multiplied by it. That leaves two operations for each state and time
// instead of three, and is exact but for rounding while the tile's decay is no smaller than 2^-60;
// otherwise the recurrence runs as it is written.
#include <array>
#include <memory>
#include <vector>

#include "block.h"
#include "scan.h"
#include "tile.h"
#include "vec.h"

namespace scan {
namespace {

constexpr float kLeastDecay = -60.0f;         // log2
constexpr int kBlock = kLanes == 16 ? 16 : 4;  // states kept in registers at once

struct alignas(Vec) Lanes {
    float lanes[kLanes];
};

struct Scratch {
    alignas(64) float in[kTile * kLanes], x[kTile * kLanes], y[kTile * kLanes];
    std::array<float, kTile> decay, growth;  // since the time before; since the tile's beginning
    std::vector<float> B, C;                 // (kTile, states)
};

// The recurrence over `count` states from `first` on.
template <int count, bool decays>
void scan_states(Scratch& tile, int times, int64_t states, int64_t first, float* state) {
    Vec h[count];
#pragma GCC unroll 16
    for (int n = 0; n < count; ++n) h[n] = load(state + n * kLanes);
    for (int64_t t = 0; t < times; ++t) {
        const float *B = &tile.B[t * states + first], *C = &tile.C[t * states + first];
        const Vec x = load(tile.x + t * kLanes), decay = splat(tile.decay[t]);
        Vec y = load(tile.y + t * kLanes), odd{};
#pragma GCC unroll 16
        for (int n = 0; n < count; ++n) {
            h[n] = (decays ? decay * h[n] : h[n]) + x * splat(B[n]);
            (n % 2 ? odd : y) += h[n] * splat(C[n]);
        }
        store(tile.y + t * kLanes, y + odd);
    }
#pragma GCC unroll 16
    for (int n = 0; n < count; ++n) store(state + n * kLanes, h[n]);
}

template <bool decays>
void scan_tile(Scratch& tile, int times, int64_t states, float* state) {
    int64_t n = 0;
    for (; n + kBlock <= states; n += kBlock)
        scan_states<kBlock, decays>(tile, times, states, n, state + n * kLanes);
    for (; n < states; ++n) scan_states<1, decays>(tile, times, states, n, state + n * kLanes);
}

// The decays of a head over a tile; whether the state can do without them.
bool load_decays(const Ssd& s, int64_t batch, int64_t head, int64_t t0, int times, Scratch& tile) {
    alignas(64) float step[kTile] = {}, sum[kTile] = {};
    float total = 0;
    for (int t = 0; t < times; ++t) {
        step[t] = s.decay[(batch * s.length + t0 + t) * s.heads + head];
        sum[t] = total += step[t];
    }
    for (int t = 0; t < kTile; t += kLanes) {
        store(&tile.decay[t], exp2_any(load(step + t)));
        store(&tile.growth[t], exp2_any(load(sum + t)));
    }
    float least = 0, most = 0;
    for (int t = 0; t < times; ++t) least = std::min(least, sum[t]), most = std::max(most, sum[t]);
    return least >= kLeastDecay && most <= -kLeastDecay && total == total;
}

void run_tile(const Ssd& s, const Block& b, Vec skip, int64_t t0, int times, float* state, Scratch& tile) {
    const int64_t head = b.group;
    const bool rescaled = load_decays(s, b.batch, head, t0, times, tile);
    const Rows x = load_rows(s.x, b.batch, b.channel, b.lanes, t0, times, tile.in);
    for (int t = 0; t < times; ++t) {
        const float dt = s.dt[(b.batch * s.length + t0 + t) * s.heads + head];
        store(tile.x + t * kLanes, x[t] * (rescaled ? dt / tile.growth[t] : dt));
        store(tile.y + t * kLanes, Vec{});
    }
    (rescaled ? scan_tile<false> : scan_tile<true>)(tile, times, s.states, state);
    for (int t = 0; t < times; ++t) {
        const Vec y = load(tile.y + t * kLanes) * (rescaled ? tile.growth[t] : 1.0f);
        store(tile.y + t * kLanes, s.D ? y + skip * x[t] : y);
    }
    if (rescaled)
        for (int64_t n = 0; n < s.states; ++n)
            store(state + n * kLanes, load(state + n * kLanes) * tile.growth[times - 1]);
    if (s.z.data) {
        const Rows z = load_rows(s.z, b.batch, b.channel, b.lanes, t0, times, tile.in);
        for (int t = 0; t < times; ++t) store(tile.y + t * kLanes, load(tile.y + t * kLanes) * silu(z[t]));
    }
    store_rows(s.out, b.batch, b.channel, b.lanes, t0, times, tile.y);
}

// B or C of a group over a tile as (time, state).
void load_group(const Operand& op, int64_t batch, int64_t group, int64_t states, int64_t t0, int times,
                float* out) {
    with_type(op, [&](const auto* data) {
        const auto* p = data + offset_of(op, batch, group * states, t0);
        for (int t = 0; t < times; ++t)
            for (int64_t n = 0; n < states; ++n) out[t * states + n] = to_float(p[t * op.time + n * op.row]);
    });
}

}  // namespace

int64_t count_blocks(const Ssd& s) { return s.batch * s.heads * blocks_per_group(s.headdim, 1); }

void run(const Ssd& s, int64_t first, int64_t last, float* state) {
    const int64_t channels = s.heads * s.headdim;
    const int64_t per_group = s.heads / s.groups * blocks_per_group(s.headdim, 1);
    const auto tile = std::make_unique<Scratch>();
    tile->B.resize(kTile * s.states), tile->C.resize(kTile * s.states);
    while (first < last) {
        // Blocks that share B and C go through each tile of time together.
        const int64_t end = std::min(last, (first / per_group + 1) * per_group);
        const int64_t size = s.states;
        std::vector<Lanes> states((end - first) * size);
        for (int64_t i = first; i < end; ++i) {
            const Block b = find_block(channels, s.heads, i);
            gather_rows(state + b.batch * channels * size, size, b, states[(i - first) * size].lanes);
        }
        for (int64_t t = 0; t < s.length; t += kTile) {
            const int times = static_cast<int>(std::min<int64_t>(kTile, s.length - t));
            const Block one = find_block(channels, s.heads, first);
            const int64_t group = one.group / (s.heads / s.groups);
            load_group(s.B, one.batch, group, size, t, times, tile->B.data());
            load_group(s.C, one.batch, group, size, t, times, tile->C.data());
            for (int64_t i = first; i < end; ++i) {
                const Block b = find_block(channels, s.heads, i);
                run_tile(s, b, gather_channels(s.D, b), t, times, states[(i - first) * size].lanes, *tile);
            }
        }
        for (int64_t i = first; i < end; ++i) {
            const Block b = find_block(channels, s.heads, i);
            scatter_rows(states[(i - first) * size].lanes, size, b, state + b.batch * channels * size);
        }
        first = end;
    }
}

}  // namespace scan
