// Tiles of (time, lane): the only code that knows about dtypes and strides.
#pragma once

#include <algorithm>
#include <type_traits>

#include "scan.h"
#include "vec.h"

namespace scan {

constexpr int kTile = 64;  // times; three tiles take a third of the L1 cache
static_assert(kTile % kLanes == 0);

struct bfloat16 {
    uint16_t bits;
};
typedef _Float16 float16;

inline float to_float(float x) { return x; }
inline float to_float(float16 x) { return static_cast<float>(x); }
inline float to_float(bfloat16 x) {
    const uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
    float f;
    std::memcpy(&f, &wide, sizeof f);
    return f;
}

inline void from_float(float x, float& out) { out = x; }
inline void from_float(float x, float16& out) { out = static_cast<float16>(x); }
inline void from_float(float x, bfloat16& out) {  // to nearest, ties to even; a NaN stays one
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof wide);
    out.bits = x != x ? 0x7fc0 : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
}

// kLanes neighbours in memory; plain loops that the compiler turns into vector conversions.
template <class T>
inline Vec load_vec(const T* p) {
    if constexpr (std::is_same_v<T, float>) return load(p);
    alignas(Vec) float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = to_float(p[i]);
    return load(lanes);
}

template <class T>
inline void store_vec(T* p, Vec v) {
    if constexpr (std::is_same_v<T, float>) return store(p, v);
    alignas(Vec) float lanes[kLanes];
    store(lanes, v);
    for (int i = 0; i < kLanes; ++i) from_float(lanes[i], p[i]);
}

// Calls f with a pointer of the operand's own type.
template <class F>
inline auto with_type(const Operand& op, F f) {
    switch (op.type) {
        case Type::bfloat16: return f(static_cast<const bfloat16*>(op.data));
        case Type::float16: return f(static_cast<const float16*>(op.data));
        default: return f(static_cast<const float*>(op.data));
    }
}

// One vector per time, in a tile or in the tensor itself.
struct Rows {
    float* data;
    int64_t stride;

    Vec operator[](int64_t t) const { return load(data + t * stride); }
    void set(int64_t t, Vec v) const { store(data + t * stride, v); }
};

inline int64_t size_of(const Operand& op) { return op.type == Type::float32 ? 4 : 2; }

inline int64_t offset_of(const Operand& op, int64_t batch, int64_t row, int64_t time) {
    return batch * op.batch + row * op.row + time * op.time;
}

// Whether a block of this operand can be used where it lies. Vectors that straddle two cache lines
// cannot: the recurrence is too long between them for the CPU to hide that both are missing.
inline bool is_direct(const Operand& op, int64_t offset, int lanes) {
    const auto address = reinterpret_cast<uintptr_t>(op.data) + offset * sizeof(float);
    return op.type == Type::float32 && op.row == 1 && lanes == kLanes &&
           (address | op.time * sizeof(float)) % sizeof(Vec) == 0;
}

// The cache lines that the next tile will want of an operand, asked for one at a time: all at once
// they would fill the CPU's queue of misses, and the recurrence would wait behind them.
struct Ahead {
    const char* data;
    int64_t near, far;  // bytes from one line to the next, and from kLanes of them to the next kLanes

    // Inlined, because GCC takes a function that only prefetches for one without effect, and drops the
    // call. Addresses past the end are harmless.
    __attribute__((always_inline)) void fetch(int64_t i) const {
        __builtin_prefetch(data + i % kLanes * near + i / kLanes * far);
    }
};

inline Ahead ahead(const Operand& op, int64_t batch, int64_t row, int64_t time) {
    const int64_t size = size_of(op), line = 64;
    const char* data = static_cast<const char*>(op.data) + offset_of(op, batch, row, time) * size;
    if (op.time == 1) return {data, op.row * size, line};
    return {data, op.time * size, op.time * size * kLanes};
}

// Rows [row, row + lanes) at times [t0, t0 + times), in place or else in `tile`, where missing
// lanes are 0.
inline Rows load_rows(const Operand& op, int64_t batch, int64_t row, int lanes, int64_t t0,
                      int times, float* tile) {
    const int64_t offset = offset_of(op, batch, row, t0);
    if (is_direct(op, offset, lanes))
        return {const_cast<float*>(static_cast<const float*>(op.data)) + offset, op.time};
    with_type(op, [&](const auto* data) {
        const auto* p = data + offset;
        int t = 0;
        if (lanes == kLanes && op.row == 1) {
            for (; t < times; ++t) store(tile + t * kLanes, load_vec(p + t * op.time));
        } else if (lanes == kLanes && op.time == 1) {
            for (; t + kLanes <= times; t += kLanes)
                transpose([&](int i) { return load_vec(p + i * op.row + t); },
                          [&](int i, Vec v) { store(tile + (t + i) * kLanes, v); });
        }
        for (; t < times; ++t)
            for (int i = 0; i < kLanes; ++i)
                tile[t * kLanes + i] = i < lanes ? to_float(p[i * op.row + t * op.time]) : 0.0f;
    });
    return {tile, kLanes};
}

// The reverse, from the tile.
inline void store_rows(const Operand& op, int64_t batch, int64_t row, int lanes, int64_t t0,
                       int times, const float* tile) {
    with_type(op, [&](const auto* data) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        T* p = const_cast<T*>(data) + offset_of(op, batch, row, t0);
        int t = 0;
        if (lanes == kLanes && op.row == 1) {
            for (; t < times; ++t) store_vec(p + t * op.time, load(tile + t * kLanes));
        } else if (lanes == kLanes && op.time == 1) {
            for (; t + kLanes <= times; t += kLanes)
                transpose([&](int i) { return load(tile + (t + i) * kLanes); },
                          [&](int i, Vec v) { store_vec(p + i * op.row + t, v); });
        }
        for (; t < times; ++t)
            for (int i = 0; i < lanes; ++i)
                from_float(tile[t * kLanes + i], p[i * op.row + t * op.time]);
    });
}

}  // namespace scan
