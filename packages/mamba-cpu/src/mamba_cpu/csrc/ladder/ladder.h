// What all steps of the ladder share: float32, batch 1, (channels, length) contiguous, a state of 16
// that starts at `state` and ends there, y = C h without skip and gate. The last step is the kernel.
#pragma once

constexpr int kStates = 16;

struct Sizes {
    long channels, length, states;
};

#define LADDER_STEP(name)                                                                      \
    extern "C" void name(const Sizes&, const float* u, const float* delta, const float* A,     \
                         const float* B, const float* C, float* state, float* y)

LADDER_STEP(scan_fused);
LADDER_STEP(scan_reordered);
LADDER_STEP(scan_unrolled);
LADDER_STEP(scan_vectorized);
LADDER_STEP(limit_exponentials);
LADDER_STEP(limit_memory);
