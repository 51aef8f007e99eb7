// The unit of work: a run of channels, one for each lane, of one batch and one group of B and C.
#pragma once

#include <algorithm>

#include "vec.h"

namespace scan {

struct Block {
    int64_t batch, group, channel;
    int lanes;
};

inline int64_t blocks_per_group(int64_t channels, int64_t groups) {
    return (channels / groups + kLanes - 1) / kLanes;
}

inline Block find_block(int64_t channels, int64_t groups, int64_t index) {
    const int64_t per_group = blocks_per_group(channels, groups), size = channels / groups;
    const int64_t group = index / per_group % groups, offset = index % per_group * kLanes;
    return {index / per_group / groups, group, group * size + offset,
            static_cast<int>(std::min<int64_t>(kLanes, size - offset))};
}

// The block's rows of a (channels, columns) matrix as one vector per column, and back.
inline void gather_rows(const float* matrix, int64_t columns, const Block& b, float* out) {
    std::fill_n(out, columns * kLanes, 0.0f);
    for (int lane = 0; lane < b.lanes; ++lane)
        for (int64_t n = 0; n < columns; ++n)
            out[n * kLanes + lane] = matrix[(b.channel + lane) * columns + n];
}

inline void scatter_rows(const float* in, int64_t columns, const Block& b, float* matrix) {
    for (int lane = 0; lane < b.lanes; ++lane)
        for (int64_t n = 0; n < columns; ++n)
            matrix[(b.channel + lane) * columns + n] = in[n * kLanes + lane];
}

inline Vec gather_channels(const float* row, const Block& b) {
    alignas(Vec) float lanes[kLanes] = {};
    if (row) std::copy_n(row + b.channel, b.lanes, lanes);
    return load(lanes);
}

}  // namespace scan
