// Vectors of floats as wide as the CPU the file is compiled for, and the few functions of them that
// a scan needs. GCC vector extensions: one source for AVX-512 (16 lanes), AVX2 (8) and neither (4).
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace scan {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IVec __attribute__((vector_size(4 * kLanes)));

inline Vec splat(float x) { return x - Vec{}; }
inline IVec bits(Vec x) { return reinterpret_cast<IVec>(x); }
inline Vec from_bits(IVec x) { return reinterpret_cast<Vec>(x); }
inline Vec load(const float* p) { Vec v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
// Both keep a NaN in x, which std::max and the maxps instruction need not do.
inline Vec at_least(Vec x, float low) { return x < low ? splat(low) : x; }
inline Vec at_most(Vec x, float high) { return x > high ? splat(high) : x; }
inline Vec abs(Vec x) { return from_bits(bits(x) & 0x7fffffff); }

// 2^x without range checks: right for |x| <= kExpSafe, NaN for NaN.
//
// Adding kRound leaves round(kLanes * x) in the low bits of the sum: its last log2(kLanes) bits
// choose 2^(i / kLanes) from a table that fills one register, the rest is the exponent. A cubic is
// then enough for what remains, |f| <= 1/16 (relative error 3e-8), where a plain polynomial on
// |f| <= 1/2 needs degree six. With 4 lanes there is no cheap shuffle, so that is what runs there.
constexpr float kExpSafe = 125.0f;
constexpr float kLog2e = 1.44269504088896341f;

inline Vec exp2_polynomial(Vec x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
    const Vec shifted = x + round;
    const Vec f = x - (shifted - round);
    Vec p = f * 1.5321162e-4f + 1.3390163e-3f;
    p = p * f + 9.6185263e-3f;
    p = p * f + 5.5503623e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    return from_bits(bits(p) + (bits(shifted) << 23));
}

#if defined(__AVX2__)
// 2^(i / kLanes), less what the unmasked shift below adds to its bits.
inline IVec exp2_table() {
#if defined(__AVX512F__)
    constexpr float powers[] = {1.0f, 1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f,
                                1.29683955f, 1.35425555f, 1.41421356f, 1.47682615f, 1.54221083f,
                                1.61049033f, 1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};
#else
    constexpr float powers[] = {1.0f, 1.09050773f, 1.18920712f, 1.29683955f,
                                1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
#endif
    IVec index;
    for (int i = 0; i < kLanes; ++i) index[i] = i;
    return bits(load(powers)) - (index << (kLanes == 16 ? 19 : 20));
}

inline Vec exp2_in_range(Vec x) {
    const float round = 12582912.0f / kLanes;  // the sum's last bit is worth 1 / kLanes
    // Keeps x = delta * A one multiplication. Contracted into the two additions below it would be
    // two FMAs, on the ports that limit this loop, while those for additions idle.
    asm("" : "+v"(x));
    const Vec shifted = x + round;
    const Vec f = x - (shifted - round);
    const IVec scale =
        __builtin_shuffle(exp2_table(), bits(shifted)) + (bits(shifted) << (kLanes == 16 ? 19 : 20));
    Vec p = f * 5.5505e-2f + (kLanes == 16 ? 2.4023428e-1f : 2.4025755e-1f);
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    return from_bits(scale) * p;
}
#else
inline Vec exp2_in_range(Vec x) { return exp2_polynomial(x); }
#endif

// 2^x for any x, subnormal results included: the same bits as exp2_in_range where that is right.
inline Vec exp2_any(Vec x) {
    x = at_most(at_least(x, -160.0f), 200.0f);
    const Vec inside = at_most(at_least(x, -100.0f), 100.0f);
    return exp2_in_range(inside) * exp2_in_range(x - inside);
}

inline Vec exp_any(Vec x) { return exp2_any(x * kLog2e); }

// log(1 + exp(x)); torch's threshold of 20 changes nothing in float32.
inline Vec softplus(Vec x) {
    const Vec w = exp_any(-abs(x));  // in [0, 1], so log(1 + w) = 2 artanh(w / (2 + w))
    const Vec s = w / (w + 2.0f);
    const Vec s2 = s * s;
    Vec p = s2 * 0.12150488f + 0.10713823f;
    p = p * s2 + 0.14308443f;
    p = p * s2 + 0.19999439f;
    p = p * s2 + 0.33333338f;
    p = p * s2 + 1.0f;
    return at_least(x, 0.0f) + 2.0f * s * p;
}

inline Vec silu(Vec x) { return x / (exp_any(-x) + 1.0f); }

// Transpose the kLanes vectors that `row(i)` gives, and hand each column to `column(i, vector)`: 4 x 4
// elements within each quarter by two kinds of unpack, then the quarters as blocks. A single rule for
// all steps is shorter, but needs shuffles across quarters. Functions and not an array, because an
// array goes through memory, and storing a vector costs as much as four shuffles.
template <int... i>
inline void unpack(const Vec a, const Vec b, Vec* out, std::integer_sequence<int, i...>) {
    out[0] = __builtin_shufflevector(a, b, (i / 4 * 4 + i % 4 / 2 + i % 2 * kLanes)...);
    out[1] = __builtin_shufflevector(a, b, (i / 4 * 4 + i % 4 / 2 + 2 + i % 2 * kLanes)...);
}

template <int... i>
inline void unpack_pairs(const Vec a, const Vec b, Vec* out, std::integer_sequence<int, i...>) {
    out[0] = __builtin_shufflevector(a, b, (i / 4 * 4 + i % 2 + i % 4 / 2 * kLanes)...);
    out[1] = __builtin_shufflevector(a, b, (i / 4 * 4 + i % 2 + 2 + i % 4 / 2 * kLanes)...);
}

// Every other quarter of a, then of b: the even ones and the odd ones.
template <int... i>
inline void split_quarters(const Vec a, const Vec b, Vec* even, Vec* odd,
                           std::integer_sequence<int, i...>) {
    constexpr int half = kLanes / 2;
    *even = __builtin_shufflevector(a, b, (i / half * kLanes + i % half / 4 * 8 + i % 4)...);
    *odd = __builtin_shufflevector(a, b, (i / half * kLanes + i % half / 4 * 8 + 4 + i % 4)...);
}

template <class Row, class Column>
__attribute__((always_inline)) inline void transpose(Row row, Column column) {
    constexpr auto lanes = std::make_integer_sequence<int, kLanes>();
    Vec s[kLanes], t[kLanes];
#pragma GCC unroll 4
    for (int k = 0; k < kLanes; k += 4) {
        unpack(row(k), row(k + 1), s + k, lanes);
        unpack(row(k + 2), row(k + 3), s + k + 2, lanes);
        unpack_pairs(s[k], s[k + 2], t + k, lanes);
        unpack_pairs(s[k + 1], s[k + 3], t + k + 2, lanes);
    }
    // t[4 q + c] now holds, in its quarter p, rows 4 q .. 4 q + 3 of column 4 p + c.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
#if defined(__AVX512F__)
        Vec even[2], odd[2], out[4];
        split_quarters(t[c], t[c + 4], &even[0], &odd[0], lanes);
        split_quarters(t[c + 8], t[c + 12], &even[1], &odd[1], lanes);
        split_quarters(even[0], even[1], &out[0], &out[2], lanes);
        split_quarters(odd[0], odd[1], &out[1], &out[3], lanes);
        for (int p = 0; p < 4; ++p) column(4 * p + c, out[p]);
#elif defined(__AVX2__)
        Vec out[2];
        split_quarters(t[c], t[c + 4], &out[0], &out[1], lanes);
        for (int p = 0; p < 2; ++p) column(4 * p + c, out[p]);
#else
        column(c, t[c]);
#endif
    }
}

}  // namespace scan
