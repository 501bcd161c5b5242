// Attention of one new position with relative positions, in float32. `model/lm/relative_lm.py` calls it.
//
// It reads each key, each distance and each value once, in the order of memory: a decode step is as fast as memory is.
// PyTorch takes two to three times as long for a single row.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(4 * kLanes)));

inline Floats load(const float* p) { Floats v; memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, Floats v) { memcpy(p, &v, sizeof v); }

// The sum of both products of n values
inline float dot(const float* a, const float* b, const float* c, const float* d, int n) {
    Floats total = {};
    float sum = 0;
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) total += load(a + i) * load(b + i) + load(c + i) * load(d + i);
    for (; i < n; i++) sum += a[i] * b[i] + c[i] * d[i];
    for (i = 0; i < kLanes; i++) sum += total[i];
    return sum;
}

}  // namespace

extern "C" {

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
            for (int j = 0; j < n; j++) sum += weights[j] * load(value + (long)j * d + i);
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
