// Step 4, vectorized: neighbouring channels across the lanes of a vector, with a vector exponential.
// Pays because each exponential is a call no longer, and 16 (AVX-512) of them are made at once.
#include "../vec.h"
#include "ladder.h"

using namespace scan;

// Element (channel d + lane, time t) of every lane: the gather that the last step does in tiles.
static Vec column(const float* matrix, const Sizes& s, long d, long t) {
    alignas(Vec) float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = matrix[(d + i) * s.length + t];
    return load(lanes);
}

void scan_vectorized(const Sizes& s, const float* u, const float* delta, const float* A,
                     const float* B, const float* C, float* state, float* y) {
    for (long d = 0; d < s.channels; d += kLanes) {
        Vec h[kStates], a[kStates];
        for (int n = 0; n < kStates; ++n)
            for (int i = 0; i < kLanes; ++i) {
                h[n][i] = state[(d + i) * kStates + n];
                a[n][i] = A[(d + i) * kStates + n] * kLog2e;
            }
        for (long t = 0; t < s.length; ++t) {
            const Vec step = column(delta, s, d, t), x = step * column(u, s, d, t);
            Vec sum{};
#pragma GCC unroll 16
            for (int n = 0; n < kStates; ++n) {
                h[n] = exp2_in_range(step * a[n]) * h[n] + x * B[n * s.length + t];
                sum += h[n] * C[n * s.length + t];
            }
            for (int i = 0; i < kLanes; ++i) y[(d + i) * s.length + t] = sum[i];
        }
        for (int n = 0; n < kStates; ++n)
            for (int i = 0; i < kLanes; ++i) state[(d + i) * kStates + n] = h[n][i];
    }
}
