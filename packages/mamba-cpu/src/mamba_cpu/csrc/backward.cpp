// The gradient of the selective scan. With a[t] = exp(delta[t] A), x = delta u and dy the gradient of
// C . h + D u, the gradient of the state runs backwards: l[t] = C[t] dy[t] + a[t+1] l[t+1]. From it,
//   dB[t] = l[t] x[t],  dC[t] = dy[t] h[t],  dx[t] = B[t] . l[t],  d(delta[t] A) = l[t] a[t] h[t-1].
//
// A first pass over time keeps the state before every tile; then each tile, from the last to the
// first, computes its states again, kStates at a time so that they stay in the cache, and goes back.
#include <vector>

#include "carry.h"

namespace scan {
namespace {

constexpr int kStates = 4;

// What one block keeps beside the Carry of the scan itself.
struct Backward : Carry {
    std::vector<float> before;  // the states before each tile
    std::vector<float> l, A_sum, B_sum, C_sum;
    Vec D_sum{}, bias_sum{};

    Backward(const Scan& s, const Gradient& g, const Block& b, const float* state)
        : Carry(s, b, state),
          before((s.length + kTile - 1) / kTile * s.states * kLanes),
          l(s.states * kLanes),
          A_sum(l.size()),
          B_sum(s.B.constant ? l.size() : 0),
          C_sum(s.C.constant ? l.size() : 0) {
        if (g.state) gather_rows(g.state + b.batch * s.channels * s.states, s.states, b, l.data());
    }
};

// A vector on its own cache line, where a float alone could straddle two.
struct alignas(Vec) Lanes {
    float lanes[kLanes];
};

// Scratch of one thread; every size is independent of the length.
struct Scratch {
    alignas(64) float delta[kTile * kLanes], u[kTile * kLanes], y[kTile * kLanes], z[kTile * kLanes],
        dy[kTile * kLanes], dx[kTile * kLanes], ddelta[kTile * kLanes], sum_y[kTile * kLanes],
        h[(kTile + 1) * kStates * kLanes], decay[kTile * kStates * kLanes];
    std::vector<float> B, C;
    std::vector<Lanes> dB, dC;  // one per time and state: the sum over blocks
};

// Pointers of one tile; B, C, dB, dC are those of its first time.
struct Work {
    int times;
    int64_t states;
    Rows delta, u;
    const float *B, *C;
    float *dB, *dC;
    Scratch& tile;
    Backward& carry;
};

// The recurrence again, over `count` states from `first` on, keeping states and decays if asked.
template <int count, bool in_range, bool constant_B, bool keep>
void advance(const Work& w, int64_t first, float* state) {
    const Rows deltas = w.delta, us = w.u;
    const float* A = w.carry.A.get() + first * kLanes;
    const float* B = w.B + first * (constant_B ? kLanes : 1);
    float *kept_h = w.tile.h, *kept_decay = w.tile.decay;
    Vec h[count];
#pragma GCC unroll 4
    for (int n = 0; n < count; ++n) {
        h[n] = load(state + n * kLanes);
        if (keep) store(kept_h + n * kLanes, h[n]);
    }
    for (int64_t t = 0; t < w.times; ++t) {
        const Vec delta = deltas[t], x = delta * us[t];
#pragma GCC unroll 4
        for (int n = 0; n < count; ++n) {
            const Vec exponent = delta * load(A + n * kLanes);
            const Vec decay = in_range ? exp2_in_range(exponent) : exp2_any(exponent);
            const Vec b = constant_B ? load(B + n * kLanes) : splat(B[t * w.states + n]);
            h[n] = decay * h[n] + x * b;
            if (keep) {
                store(kept_decay + (t * count + n) * kLanes, decay);
                store(kept_h + ((t + 1) * count + n) * kLanes, h[n]);
            }
        }
    }
    if (keep) return;
#pragma GCC unroll 4
    for (int n = 0; n < count; ++n) store(state + n * kLanes, h[n]);
}

template <int count, bool keep>
void advance(const Work& w, int64_t first, float* state, bool in_range, bool constant_B) {
    constexpr decltype(&advance<count, true, true, keep>) kernels[] = {
        advance<count, false, false, keep>, advance<count, false, true, keep>,
        advance<count, true, false, keep>, advance<count, true, true, keep>};
    kernels[in_range * 2 + constant_B](w, first, state);
}

// Back through the tile, over the states that `advance` kept.
template <int count, bool constant_B, bool constant_C>
void go_back(const Work& w, int64_t first) {
    Scratch& tile = w.tile;
    const Rows deltas = w.delta, us = w.u;
    const int64_t states = w.states;
    const float* A = w.carry.A.get() + first * kLanes;
    float* l_carried = w.carry.l.data() + first * kLanes;
    float* A_carried = w.carry.A_sum.data() + first * kLanes;
    Vec l[count], A_sum[count];
#pragma GCC unroll 4
    for (int n = 0; n < count; ++n) l[n] = load(l_carried + n * kLanes), A_sum[n] = load(A_carried + n * kLanes);
    for (int64_t t = w.times - 1; t >= 0; --t) {
        const Vec delta = deltas[t], x = delta * us[t], dy = load(tile.dy + t * kLanes);
        Vec dx = load(tile.dx + t * kLanes), ddelta = load(tile.ddelta + t * kLanes);
        Vec y = load(tile.sum_y + t * kLanes);
#pragma GCC unroll 4
        for (int n = 0; n < count; ++n) {
            const float* h = tile.h + (t * count + n) * kLanes;
            const Vec now = load(h + count * kLanes);
            const int64_t at = t * states + first + n;
            const Vec b = constant_B ? load(w.B + (first + n) * kLanes) : splat(w.B[at]);
            const Vec c = constant_C ? load(w.C + (first + n) * kLanes) : splat(w.C[at]);
            float* dB = w.dB + (constant_B ? first + n : at) * kLanes;
            float* dC = w.dC + (constant_C ? first + n : at) * kLanes;
            l[n] += c * dy;
            store(dC, load(dC) + dy * now);
            store(dB, load(dB) + l[n] * x);
            dx += l[n] * b;
            y += c * now;
            l[n] *= load(tile.decay + (t * count + n) * kLanes);
            const Vec exponent = l[n] * load(h);
            A_sum[n] += exponent * delta;
            ddelta += exponent * load(A + n * kLanes);
        }
        store(tile.dx + t * kLanes, dx), store(tile.ddelta + t * kLanes, ddelta);
        store(tile.sum_y + t * kLanes, y);
    }
#pragma GCC unroll 4
    for (int n = 0; n < count; ++n) store(l_carried + n * kLanes, l[n]), store(A_carried + n * kLanes, A_sum[n]);
}

template <int count>
void go_back(const Work& w, int64_t first, bool constant_B, bool constant_C) {
    constexpr decltype(&go_back<count, true, true>) kernels[] = {
        go_back<count, false, false>, go_back<count, false, true>, go_back<count, true, false>,
        go_back<count, true, true>};
    kernels[constant_B * 2 + constant_C](w, first);
}

// delta and u of a tile, and where its share of B and C lies in the scratch.
Work load_work(const Scan& s, Backward& c, int64_t t0, Scratch& tile) {
    const int times = static_cast<int>(std::min<int64_t>(kTile, s.length - t0));
    const Block& b = c.block;
    const Rows delta = load_delta(s, c, t0, times, tile.delta);
    const Rows u = load_rows(s.u, b.batch, b.channel, b.lanes, t0, times, tile.u);
    return {times, s.states, delta, u, tile.B.data(), tile.C.data(),
            s.B.constant ? c.B_sum.data() : tile.dB.data()->lanes, s.C.constant ? c.C_sum.data() : tile.dC.data()->lanes,
            tile, c};
}

bool is_in_range(const Work& w) {
    Vec largest{};
    for (int t = 0; t < w.times; ++t) {
        const Vec size = abs(w.delta[t]);
        largest = size <= largest ? largest : size;  // a NaN stays
    }
    return all_at_most(largest * w.carry.largest_A, kExpSafe);
}

void keep_state(const Scan& s, Backward& c, int64_t t0, Scratch& tile) {
    float* state = c.state.get();
    std::copy_n(state, s.states * kLanes, &c.before[t0 / kTile * s.states * kLanes]);
    const Work w = load_work(s, c, t0, tile);
    const bool in_range = is_in_range(w);
    int64_t n = 0;
    for (; n + kStates <= s.states; n += kStates)
        advance<kStates, false>(w, n, state + n * kLanes, in_range, s.B.constant);
    for (; n < s.states; ++n) advance<1, false>(w, n, state + n * kLanes, in_range, s.B.constant);
}

Vec sigmoid(Vec x) { return 1.0f / (exp_any(-x) + 1.0f); }

// The gradient of y before the gate.
void load_dy(const Scan& s, const Gradient& g, const Block& b, int64_t t0, int times, Scratch& tile) {
    const Rows y = load_rows(g.y, b.batch, b.channel, b.lanes, t0, times, tile.y);
    const Rows z = s.z.data ? load_rows(s.z, b.batch, b.channel, b.lanes, t0, times, tile.z) : y;
    for (int t = 0; t < times; ++t) store(tile.dy + t * kLanes, s.z.data ? y[t] * silu(z[t]) : y[t]);
}

// From the sums over states to the gradients of u, delta and z.
void finish(const Scan& s, const Gradient& g, const Work& w, int64_t t0) {
    Scratch& tile = w.tile;
    Backward& c = w.carry;
    const Block& b = c.block;
    if (s.z.data) {
        const Rows dout = load_rows(g.y, b.batch, b.channel, b.lanes, t0, w.times, tile.y);
        const Rows z = load_rows(s.z, b.batch, b.channel, b.lanes, t0, w.times, tile.z);
        for (int t = 0; t < w.times; ++t) {
            const Vec gate = sigmoid(z[t]), y = load(tile.sum_y + t * kLanes) + c.skip * w.u[t];
            store(tile.sum_y + t * kLanes, dout[t] * y * gate * (1.0f + z[t] * (1.0f - gate)));
        }
        store_rows(g.z, b.batch, b.channel, b.lanes, t0, w.times, tile.sum_y);
    }
    const Rows raw = load_rows(s.delta, b.batch, b.channel, b.lanes, t0, w.times, tile.z);
    for (int t = 0; t < w.times; ++t) {
        const Vec u = w.u[t], dy = load(tile.dy + t * kLanes), dx = load(tile.dx + t * kLanes);
        // A is times log2(e) in the sum over states.
        Vec ddelta = load(tile.ddelta + t * kLanes) * (1 / kLog2e) + u * dx;
        if (s.softplus) ddelta *= sigmoid(raw[t] + c.bias);
        c.D_sum += dy * u;
        c.bias_sum += ddelta;
        store(tile.ddelta + t * kLanes, ddelta);
        store(tile.dx + t * kLanes, c.skip * dy + w.delta[t] * dx);
    }
    store_rows(g.u, b.batch, b.channel, b.lanes, t0, w.times, tile.dx);
    store_rows(g.delta, b.batch, b.channel, b.lanes, t0, w.times, tile.ddelta);
}

void run_tile(const Scan& s, const Gradient& g, Backward& c, int64_t t0, Scratch& tile) {
    const Work w = load_work(s, c, t0, tile);
    load_dy(s, g, c.block, t0, w.times, tile);
    for (float* sums : {tile.dx, tile.ddelta, tile.sum_y}) std::fill_n(sums, w.times * kLanes, 0.0f);
    const bool in_range = is_in_range(w);
    float* before = &c.before[t0 / kTile * s.states * kLanes];
    int64_t n = 0;
    for (; n + kStates <= s.states; n += kStates) {
        advance<kStates, true>(w, n, before + n * kLanes, in_range, s.B.constant);
        go_back<kStates>(w, n, s.B.constant, s.C.constant);
    }
    for (; n < s.states; ++n) {
        advance<1, true>(w, n, before + n * kLanes, in_range, s.B.constant);
        go_back<1>(w, n, s.B.constant, s.C.constant);
    }
    finish(s, g, w, t0);
}

// Adds the sum over lanes of each of `count` vectors to `out`.
void add_over_lanes(const float* vectors, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        Vec sum = load(out + i);
        transpose([&](int k) { return load(vectors + (i + k) * kLanes); }, [&](int, Vec v) { sum += v; });
        store(out + i, sum);
    }
    for (; i < count; ++i)
        for (int lane = 0; lane < kLanes; ++lane) out[i] += vectors[i * kLanes + lane];
}

void save(const Scan& s, const Gradient& g, const Backward& c) {
    const Block& b = c.block;
    const int64_t batch = b.batch * s.channels * s.states;
    scatter_rows(c.l.data(), s.states, b, g.initial + batch);
    scatter_rows(c.A_sum.data(), s.states, b, g.A + batch);
    if (s.B.constant) scatter_rows(c.B_sum.data(), s.states, b, g.B + batch);
    if (s.C.constant) scatter_rows(c.C_sum.data(), s.states, b, g.C + batch);
    alignas(Vec) float D[kLanes], bias[kLanes];
    store(D, c.D_sum), store(bias, c.bias_sum);
    std::copy_n(D, b.lanes, g.D + b.batch * s.channels + b.channel);
    std::copy_n(bias, b.lanes, g.bias + b.batch * s.channels + b.channel);
}

// Calls f for every block, with the block's share of B and C loaded where they are constant.
template <class F>
void for_blocks(const Scan& s, std::vector<Backward>& blocks, Scratch& tile, F f) {
    for (Backward& c : blocks) {
        if (s.B.constant) gather_rows(s.B.constant, s.states, c.block, tile.B.data());
        if (s.C.constant) gather_rows(s.C.constant, s.states, c.block, tile.C.data());
        f(c);
    }
}

void run_group(const Scan& s, const Gradient& g, std::vector<Backward>& blocks, Scratch& tile) {
    const Block& b = blocks[0].block;
    const auto load = [&](int64_t t, bool both) {
        const int64_t times = std::min<int64_t>(kTile, s.length - t);
        load_projection(s.B, s.states, b, t, times, tile.B.data());
        if (both) load_projection(s.C, s.states, b, t, times, tile.C.data());
        return times;
    };
    for (int64_t t = 0; t < s.length; t += kTile) {
        load(t, false);
        for_blocks(s, blocks, tile, [&](Backward& c) { keep_state(s, c, t, tile); });
    }
    const int64_t group = (b.batch * s.groups + b.group) * s.length;
    for (int64_t t = (s.length - 1) / kTile * kTile; t >= 0; t -= kTile) {
        const int64_t times = load(t, true);
        std::fill(tile.dB.begin(), tile.dB.end(), Lanes{});
        std::fill(tile.dC.begin(), tile.dC.end(), Lanes{});
        for_blocks(s, blocks, tile, [&](Backward& c) { run_tile(s, g, c, t, tile); });
        const int64_t count = times * s.states, at = (group + t) * s.states;
        if (!s.B.constant) add_over_lanes(tile.dB.data()->lanes, count, g.B + at);
        if (!s.C.constant) add_over_lanes(tile.dC.data()->lanes, count, g.C + at);
    }
    for (const Backward& c : blocks) save(s, g, c);
}

}  // namespace

void run(const Scan& s, const Gradient& g, int64_t first, int64_t last, const float* state) {
    const auto scratch = std::make_unique<Scratch>();
    const size_t size = s.states * kTile;
    scratch->B.resize(std::max<size_t>(size, s.states * kLanes));
    scratch->C.resize(scratch->B.size());
    scratch->dB.resize(s.B.constant ? 0 : size);
    scratch->dC.resize(s.C.constant ? 0 : size);
    const int64_t per_group = blocks_per_group(s.channels, s.groups);
    while (first < last) {
        const int64_t end = std::min(last, (first / per_group + 1) * per_group);
        std::vector<Backward> blocks;
        for (int64_t i = first; i < end; ++i)
            blocks.emplace_back(s, g, find_block(s.channels, s.groups, i), state);
        run_group(s, g, blocks, *scratch);
        first = end;
    }
}

}  // namespace scan
