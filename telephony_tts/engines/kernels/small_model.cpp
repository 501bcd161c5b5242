// What only CosyVoice-300M needs, in float32: `model/lm/relative_lm.py` and `model/flow/unet.py` call it.

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

// The sum of both products of n values
inline float dot(const float* a, const float* b, const float* c, const float* d, int n) {
    Floats total = {};
    float rest = 0;
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
        total += load<Floats>(a + i) * load<Floats>(b + i) + load<Floats>(c + i) * load<Floats>(d + i);
    for (; i < n; i++) rest += a[i] * b[i] + c[i] * d[i];
    return sum(total) + rest;
}

}  // namespace

extern "C" {

// x [n_batch][n][d] = mish(GroupNorm(x)), in place: mean and variance are over all n positions and the channels of a
// group, of which n_groups divide d.
void group_norm_mish(float* x, int n_batch, int n, int d, int n_groups, const float* weight, const float* bias, float eps) {
    static thread_local std::vector<float> memory;
    const int padded = (d + kLanes - 1) / kLanes * kLanes, size = d / n_groups;
    memory.assign(4 * padded, 0);
    float *mean = memory.data(), *squares = mean + padded, *factor = squares + padded, *row = factor + padded;
    for (int b = 0; b < n_batch; b++, x += (long)n * d) {
        // Sums of each channel, then of its group, then that for each channel of the group.
        auto share = [&](float* sums) {
            for (int g = 0; g < n_groups; g++) {
                double total = 0;
                for (int c = g * size; c < (g + 1) * size; c++) total += sums[c];
                std::fill(sums + g * size, sums + (g + 1) * size, (float)(total / ((double)n * size)));
            }
        };
        std::fill(mean, mean + 2 * padded, 0.0f);
        for (int t = 0; t < n; t++) for (int c = 0; c < d; c++) mean[c] += x[(long)t * d + c];
        share(mean);
        for (int t = 0; t < n; t++) for (int c = 0; c < d; c++) {
            const float from_mean = x[(long)t * d + c] - mean[c];
            squares[c] += from_mean * from_mean;
        }
        share(squares);
        for (int c = 0; c < d; c++) factor[c] = weight[c] / std::sqrt(squares[c] + eps);
        for (int t = 0; t < n; t++) {
            for (int c = 0; c < d; c++) row[c] = (x[(long)t * d + c] - mean[c]) * factor[c] + bias[c];
            for (int c = 0; c < padded; c += kLanes) store(row + c, mish(load<Floats>(row + c)));
            memcpy(x + (long)t * d, row, d * sizeof(float));
        }
    }
}

// Attention of one new position with relative positions. It reads each key, each distance and each value once, in the
// order of memory: a decode step is as fast as memory is. PyTorch takes two to three times as long for a single row.
//
// qkv [3][n_heads][d]: query, key and value of position n - 1. keys, values [n_heads][max_len][d] of a slot, to which the
// new ones are written; positions [n_heads][max_len][d] of the distances max_len - 1 down to 0; u, v [n_heads][d].
// out [n_heads][d] = softmax(((q + u) key + (q + v) distance) / sqrt(d)) values, over the n positions.
void attend_relative(const float* qkv, const float* u, const float* v, float* keys, float* values,
                     const float* positions, int n_heads, int d, int max_len, int n, float* out) {
    static thread_local std::vector<float> memory;
    memory.resize(n + 2 * d);
    float* weights = memory.data();
    float *to_key = weights + n, *to_distance = to_key + d;
    const float scale = 1 / std::sqrt((float)d);
    for (int h = 0; h < n_heads; h++) {
        const float* query = qkv + h * d;
        float* key = keys + (long)h * max_len * d;
        float* value = values + (long)h * max_len * d;
        const float* position = positions + ((long)(h + 1) * max_len - n) * d;
        memcpy(key + (long)(n - 1) * d, query + n_heads * d, d * sizeof(float));
        memcpy(value + (long)(n - 1) * d, query + 2 * n_heads * d, d * sizeof(float));
        for (int i = 0; i < d; i++) {
            to_key[i] = (query[i] + u[h * d + i]) * scale;
            to_distance[i] = (query[i] + v[h * d + i]) * scale;
        }
        float most = -INFINITY, total = 0;
        for (int j = 0; j < n; j++) {
            weights[j] = dot(to_key, key + (long)j * d, to_distance, position + (long)j * d, d);
            most = std::max(most, weights[j]);
        }
        for (int j = 0; j < n; j++) total += weights[j] = std::exp(weights[j] - most);
        float* result = out + h * d;
        int i = 0;
        for (; i + kLanes <= d; i += kLanes) {
            Floats sum = {};
            for (int j = 0; j < n; j++) sum += weights[j] * load<Floats>(value + (long)j * d + i);
            store(result + i, sum / total);
        }
        for (; i < d; i++) {
            float sum = 0;
            for (int j = 0; j < n; j++) sum += weights[j] * value[(long)j * d + i];
            result[i] = sum / total;
        }
    }
}

}  // extern "C"
