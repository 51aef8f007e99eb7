// Step 3, unrolled: the loop over a state of 16 has a fixed length, and the state is a local array.
// Pays because h and A stay in registers, and 16 independent chains hide each other's latency.
#include <cmath>

#include "ladder.h"

void scan_unrolled(const Sizes& s, const float* u, const float* delta, const float* A,
                   const float* B, const float* C, float* state, float* y) {
    for (long d = 0; d < s.channels; ++d) {
        float h[kStates], a[kStates];
        for (int n = 0; n < kStates; ++n) h[n] = state[d * kStates + n];
        for (int n = 0; n < kStates; ++n) a[n] = A[d * kStates + n];
        for (long t = 0; t < s.length; ++t) {
            const float step = delta[d * s.length + t], x = step * u[d * s.length + t];
            float sum = 0;
#pragma GCC unroll 16
            for (int n = 0; n < kStates; ++n) {
                h[n] = std::exp(step * a[n]) * h[n] + x * B[n * s.length + t];
                sum += h[n] * C[n * s.length + t];
            }
            y[d * s.length + t] = sum;
        }
        for (int n = 0; n < kStates; ++n) state[d * kStates + n] = h[n];
    }
}
