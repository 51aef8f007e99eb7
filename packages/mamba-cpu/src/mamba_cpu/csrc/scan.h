// What the operator hands to the kernel: plain pointers, strides and sizes.
#pragma once

#include <cstdint>

namespace scan {

enum class Type : int { float32, bfloat16, float16 };

// A (batch, rows, length) tensor, strides in elements; data is null where the operand is absent.
struct Operand {
    const void* data = nullptr;
    Type type = Type::float32;
    int64_t batch = 0, row = 0, time = 0;
};

// B or C: (batch, groups, state, length), `rows.row` being the stride of the state, or constant
// in time: (channels, states), contiguous float32.
struct Projection {
    Operand rows;
    int64_t group = 0;
    const float* constant = nullptr;
};

struct Scan {
    int64_t batch, channels, length, states, groups;
    Operand u, delta, z, out;  // out.data is written to
    Projection B, C;
    const float* A;     // (channels, states), contiguous
    const float* D;     // (channels), or null
    const float* bias;  // of delta, (channels), or null
    bool softplus;
};

// The unit of work is a block: one vector of neighbouring channels of one batch and group.
int64_t count_blocks(const Scan&);

// Run blocks [first, last) over times [from, to). Blocks are independent of one another.
// `state` (batch, channels, states), contiguous float32, holds the first state and then the last.
// `decay`, if given, has its shape: it becomes exp(A * sum of delta), and nothing is written to
// out. That is the first of the two passes that split time between threads.
void run(const Scan&, int64_t first, int64_t last, int64_t from, int64_t to, float* state,
         float* decay);

// The gradients of a Scan, from that of its y and of its last state.
struct Gradient {
    Operand y;           // read
    const float* state;  // read: (batch, channels, states), contiguous; null for zero
    Operand u, delta, z;  // written to
    float *A, *initial;   // written to: (batch, channels, states)
    float *D, *bias;      // written to: (batch, channels)
    float *B, *C;         // added to: (batch, groups, length, states); constant: (batch, channels, states)
};

// Run blocks [first, last) of the gradient; `state` is the first state. Blocks of one group add to
// the same B and C, so threads that share a group need a copy of these each.
void run(const Scan&, const Gradient&, int64_t first, int64_t last, const float* state);

// Mamba-2's scan, whose decay is one number per head and time:
// h[t] = exp(decay[t]) h[t-1] + dt[t] x[t] B[t],  y[t] = C[t] . h[t] + D x[t], gated by z.
// Channels are heads times `headdim`; x, z and out are (batch, channels, length).
struct Ssd {
    int64_t batch, heads, headdim, length, states, groups;
    Operand x, z, out, B, C;  // B and C: (batch, groups * states, length)
    const float *dt, *decay;  // (batch, length, heads), contiguous; the exponent in base 2
    const float* D;           // (channels), or null
};

int64_t count_blocks(const Ssd&);
// `state` (batch, channels, states), contiguous, holds the first state and then the last.
void run(const Ssd&, int64_t first, int64_t last, float* state);

// The causal depthwise convolution: x and out (batch, channels, length), weight (channels, width).
struct Conv {
    int64_t batch, channels, length, width;
    Operand x, out;
    const float *weight, *bias;  // contiguous; bias may be null
    bool silu;
};

constexpr int64_t kWidest = 32;  // a tile must hold more times than the convolution reaches back

int64_t count_blocks(const Conv&);
void run(const Conv&, int64_t first, int64_t last);

}  // namespace scan
