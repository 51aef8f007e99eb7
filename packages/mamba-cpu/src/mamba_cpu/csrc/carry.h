// What a block of channels keeps from tile to tile, and how it loads its operands; shared by the scan
// and its gradient.
#pragma once

#include <algorithm>
#include <memory>

#include "block.h"
#include "scan.h"
#include "tile.h"
#include "vec.h"

namespace scan {

// Times for which B and C are laid out as (time, state), once for all blocks of a group. Every time,
// or every row, of a large tensor is on a page of its own: the longer a span, the fewer pages are
// come back to where time is contiguous, and the more must stay in the TLB where channels are.
constexpr int64_t kSpan = 512;

// What one block keeps from tile to tile.
struct Carry {
    Block block;
    std::unique_ptr<float[]> A, state;  // a vector per state; A is times log2(e)
    Vec skip, bias;                     // D, and delta's
    Vec largest_A{};                    // over states, of |A|
    Vec sum_delta{};                    // over time

    Carry(const Scan& s, const Block& b, const float* first_state)
        : block(b),
          A(new float[s.states * kLanes]),
          state(new float[s.states * kLanes]),
          skip(gather_channels(s.D, b)),
          bias(gather_channels(s.bias, b)) {
        gather_rows(s.A, s.states, b, A.get());
        gather_rows(first_state + b.batch * s.channels * s.states, s.states, b, state.get());
        for (int64_t n = 0; n < s.states; ++n) {
            const Vec a = load(&A[n * kLanes]) * kLog2e;
            store(&A[n * kLanes], a);
            largest_A = abs(a) > largest_A ? abs(a) : largest_A;
        }
    }
};

inline bool all_at_most(Vec v, float limit) {
    alignas(Vec) float lanes[kLanes];
    store(lanes, v);
    for (const float lane : lanes)
        if (!(lane <= limit)) return false;
    return true;
}

// delta with its bias and softplus, in the tile if there is anything to change.
inline Rows load_delta(const Scan& s, const Carry& c, int64_t t0, int times, float* tile) {
    const Block& b = c.block;
    const Rows raw = load_rows(s.delta, b.batch, b.channel, b.lanes, t0, times, tile);
    if (!s.bias && !s.softplus) return raw;
    const Rows delta{tile, kLanes};
    for (int t = 0; t < times; ++t) {
        const Vec v = raw[t] + c.bias;
        delta.set(t, s.softplus ? softplus(v) : v);
    }
    return delta;
}

// A span of B or C as (time, state), shared by all blocks of the group: the states are its rows.
inline void load_projection(const Projection& p, int64_t states, const Block& b, int64_t t0,
                     int64_t times, float* out) {
    if (p.constant) return;
    Operand op = p.rows;
    op.data = static_cast<const char*>(op.data) + b.group * p.group * size_of(op);
    alignas(64) float tile[kTile * kLanes];
    for (int64_t t = 0; t < times; t += kTile)
        for (int64_t n = 0; n < states; n += kLanes) {
            const int count = static_cast<int>(std::min<int64_t>(kTile, times - t));
            const int lanes = static_cast<int>(std::min<int64_t>(kLanes, states - n));
            const Rows rows = load_rows(op, b.batch, n, lanes, t0 + t, count, tile);
            for (int i = 0; i < count; ++i)
                std::copy_n(rows.data + i * rows.stride, lanes, out + (t + i) * states + n);
        }
}

}  // namespace scan
