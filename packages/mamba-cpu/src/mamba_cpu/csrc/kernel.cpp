// The selective scan: h[t] = exp(delta[t] A) h[t-1] + delta[t] u[t] B[t],  y[t] = C[t] . h[t] + D u[t].
//
// Channels lie across the lanes of a vector and a state of 16 stays in registers, so the recurrence
// over time runs as it is written and no (length x state) intermediate exists. Channels that are
// not contiguous, or not float32, pass through tiles of kTile times in the L1 cache (tile.h).
#include <algorithm>
#include <array>
#include <vector>

#include "carry.h"

namespace scan {
namespace {

constexpr int kBlock = kLanes == 16 ? 16 : 4;  // states kept in registers at once

// Scratch of one thread; every size is independent of the length.
struct Scratch {
    alignas(64) float delta[kTile * kLanes], u[kTile * kLanes], y[kTile * kLanes];
    std::unique_ptr<float[]> B, C;  // (kTile, states), or a vector per state when constant
};

// One block's share of a tile of time, as the recurrence wants it.
struct Work {
    int times;
    int64_t states;
    Rows delta, u, y;
    Vec largest_A, skip;
    bool has_skip;
    const float *A, *B, *C;
    float* state;
    std::array<Ahead, 4> ahead;
};

// The recurrence over `count` states from `first` on; everything else here feeds this loop.
// False, with nothing changed but y, if an exponent left the range where `in_range` is right.
template <int count, bool in_range, bool constant_B, bool constant_C>
bool scan_states(const Work& w, int64_t first) {
    // Copies, because the compiler must assume that storing y changes what w points to.
    const Rows deltas = w.delta, us = w.u, ys = w.y;
    const int64_t times = w.times, states = w.states;
    const bool adds = first > 0, has_skip = w.has_skip;
    const std::array<Ahead, 4> ahead = w.ahead;
    const float* A = w.A + first * kLanes;
    const float* B = w.B + first * (constant_B ? kLanes : 1);
    const float* C = w.C + first * (constant_C ? kLanes : 1);
    float* state = w.state + first * kLanes;
    Vec h[count], largest{};
#pragma GCC unroll 16
    for (int n = 0; n < count; ++n) h[n] = load(state + n * kLanes);
    for (int64_t t = 0; t < times; ++t) {
        for (const Ahead& lines : ahead) lines.fetch(t);
        const Vec delta = deltas[t], u = us[t], x = delta * u;
        Vec y = adds ? ys[t] : has_skip ? w.skip * u : Vec{};
#pragma GCC unroll 16
        for (int n = 0; n < count; ++n) {
            const Vec exponent = delta * load(A + n * kLanes);
            const Vec decay = in_range ? exp2_in_range(exponent) : exp2_any(exponent);
            const Vec b = constant_B ? load(B + n * kLanes) : splat(B[t * states + n]);
            const Vec c = constant_C ? load(C + n * kLanes) : splat(C[t * states + n]);
            h[n] = decay * h[n] + x * b;
            y += h[n] * c;
        }
        ys.set(t, y);
        largest = abs(delta) > largest ? abs(delta) : largest;
    }
    if (in_range && !all_at_most(largest * w.largest_A, kExpSafe)) return false;
#pragma GCC unroll 16
    for (int n = 0; n < count; ++n) store(state + n * kLanes, h[n]);
    return true;
}

template <int count>
bool scan_states(const Work& w, int64_t first, bool in_range, bool constant_B, bool constant_C) {
    constexpr decltype(&scan_states<count, true, true, true>) kernels[] = {
        scan_states<count, false, false, false>, scan_states<count, false, false, true>,
        scan_states<count, false, true, false>,  scan_states<count, false, true, true>,
        scan_states<count, true, false, false>,  scan_states<count, true, false, true>,
        scan_states<count, true, true, false>,   scan_states<count, true, true, true>};
    return kernels[in_range * 4 + constant_B * 2 + constant_C](w, first);
}

// Any number of states, as many at once as stay in registers. The range of the exponents is
// checked after the first of them, once for a tile: only then is there something to repeat.
void scan_tile(const Work& w, bool constant_B, bool constant_C) {
    bool in_range = true;
    for (int64_t n = 0, count; n < w.states; n += count) {
        const int64_t left = w.states - n;
        count = left >= kBlock ? kBlock : left >= 4 ? 4 : 1;
        const auto scan = count == kBlock ? scan_states<kBlock>
                          : count == 4    ? scan_states<4>
                                          : scan_states<1>;
        if (!scan(w, n, in_range, constant_B, constant_C)) {
            in_range = false;
            scan(w, n, in_range, constant_B, constant_C);
        }
    }
}

void gate(const Scan& s, const Block& b, int64_t t0, int times, Rows y, float* tile) {
    const Rows z = load_rows(s.z, b.batch, b.channel, b.lanes, t0, times, tile);
    for (int t = 0; t < times; ++t) y.set(t, y[t] * silu(z[t]));
}

// What the tile of `channel` and `time` will want; absent operands repeat one that is there.
std::array<Ahead, 4> look_ahead(const Scan& s, int64_t batch, int64_t channel, int64_t time) {
    const auto lines = [&](const Operand& op) { return ahead(op, batch, channel, time); };
    return {lines(s.u), lines(s.delta), lines(s.out), lines(s.z.data ? s.z : s.u)};
}

void run_tile(const Scan& s, Carry& c, int64_t t0, int times, const float* B, const float* C,
              Scratch& tile, bool emit, const std::array<Ahead, 4>& ahead) {
    const Block& b = c.block;
    const bool direct = emit && is_direct(s.out, offset_of(s.out, b.batch, b.channel, t0), b.lanes);
    const Rows y = direct ? load_rows(s.out, b.batch, b.channel, b.lanes, t0, times, nullptr)
                          : Rows{tile.y, kLanes};
    const Rows delta = load_delta(s, c, t0, times, tile.delta);
    const Rows u = load_rows(s.u, b.batch, b.channel, b.lanes, t0, times, tile.u);
    scan_tile({times, s.states, delta, u, y, c.largest_A, c.skip, s.D != nullptr, c.A.get(),
               B, C, c.state.get(), ahead},
              s.B.constant, s.C.constant);
    if (!emit) {
        for (int t = 0; t < times; ++t) c.sum_delta += delta[t];
        return;
    }
    if (s.z.data) gate(s, b, t0, times, y, tile.u);
    if (!direct) store_rows(s.out, b.batch, b.channel, b.lanes, t0, times, tile.y);
}

// One block through a span of time, for which the scratch holds B and C.
void run_span(const Scan& s, Carry& c, int64_t t0, int64_t times, Scratch& scratch, bool emit) {
    if (s.B.constant) gather_rows(s.B.constant, s.states, c.block, scratch.B.get());
    if (s.C.constant) gather_rows(s.C.constant, s.states, c.block, scratch.C.get());
    for (int64_t t = 0; t < times; t += kTile) {
        const float* B = scratch.B.get() + (s.B.constant ? 0 : t * s.states);
        const float* C = scratch.C.get() + (s.C.constant ? 0 : t * s.states);
        // After the span's last tile comes the first of the neighbouring block.
        const bool last = t + kTile >= times;
        const auto ahead = look_ahead(s, c.block.batch, c.block.channel + (last ? kLanes : 0),
                                      last ? t0 : t0 + t + kTile);
        run_tile(s, c, t0 + t, std::min<int64_t>(kTile, times - t), B, C, scratch, emit, ahead);
    }
}

void save(const Scan& s, Carry& c, float* state, float* decay) {
    const int64_t batch = c.block.batch * s.channels * s.states;
    scatter_rows(c.state.get(), s.states, c.block, state + batch);
    if (!decay) return;
    for (int64_t n = 0; n < s.states; ++n)
        store(&c.A[n * kLanes], exp2_any(load(&c.A[n * kLanes]) * c.sum_delta));
    scatter_rows(c.A.get(), s.states, c.block, decay + batch);
}

}  // namespace

int64_t count_blocks(const Scan& s) { return s.batch * s.groups * blocks_per_group(s.channels, s.groups); }

void run(const Scan& s, int64_t first, int64_t last, int64_t from, int64_t to, float* state,
         float* decay) {
    Scratch scratch;
    scratch.B.reset(new float[s.states * std::max<int64_t>(kSpan, kLanes)]);
    scratch.C.reset(new float[s.states * std::max<int64_t>(kSpan, kLanes)]);
    while (first < last) {
        // Blocks that share B and C go through each tile of time together.
        const int64_t per_group = blocks_per_group(s.channels, s.groups);
        const int64_t end = std::min(last, (first / per_group + 1) * per_group);
        std::vector<Carry> blocks;
        for (int64_t i = first; i < end; ++i) blocks.emplace_back(s, find_block(s.channels, s.groups, i), state);
        for (int64_t t = from; t < to; t += kSpan) {
            const int64_t times = std::min(kSpan, to - t);
            load_projection(s.B, s.states, blocks[0].block, t, times, scratch.B.get());
            load_projection(s.C, s.states, blocks[0].block, t, times, scratch.C.get());
            for (Carry& c : blocks) run_span(s, c, t, times, scratch, !decay);
        }
        for (Carry& c : blocks) save(s, c, state, decay);
        first = end;
    }
}

}  // namespace scan
