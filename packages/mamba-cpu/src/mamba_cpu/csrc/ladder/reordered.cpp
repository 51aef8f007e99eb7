// Step 2, reordered: time innermost (but for the short loop over the state), channels outside it.
// Pays because u, delta and y are then read in the order they lie in, and one state stays in cache.
#include <cmath>

#include "ladder.h"

void scan_reordered(const Sizes& s, const float* u, const float* delta, const float* A,
                    const float* B, const float* C, float* state, float* y) {
    for (long d = 0; d < s.channels; ++d)
        for (long t = 0; t < s.length; ++t) {
            const float step = delta[d * s.length + t], x = step * u[d * s.length + t];
            float sum = 0;
            for (long n = 0; n < s.states; ++n) {
                float& h = state[d * s.states + n];
                h = std::exp(step * A[d * s.states + n]) * h + x * B[n * s.length + t];
                sum += h * C[n * s.length + t];
            }
            y[d * s.length + t] = sum;
        }
}
