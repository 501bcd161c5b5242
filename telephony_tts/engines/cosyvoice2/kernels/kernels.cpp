// Int8 linear maps and attention for a CPU. `model/linear.py`, `model/flow/int8_layers.py` and `int8_pages.py` call them.
//
// Every sum of products is a sum of integers, so it is exact: a row's result depends neither on the number of rows nor on
// the build that `library.py` chooses. All else is computed row by row.
//
//     weights      unsigned bytes, 128 added, in panels [K / 4][kPanel][4]: four weights of an output lie side by side
//     activations  signed bytes in rows [M][K]
//     dot          4 x kLanes products added to kLanes sums of 32 bits: one instruction with VNNI
//
// The 128 is taken out afterwards: sum(a * (w + 128)) - 128 * sum(a) = sum(a * w).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512VNNI__)
constexpr int kLanes = 16, kVectors = 4, kRows = 6;
#else
constexpr int kLanes = 8, kVectors = 2, kRows = 4;
#endif
constexpr int kPanel = kLanes * kVectors;  // outputs that a tile computes, of kRows rows at most
constexpr int kHeadStep = 64;              // values of a head are padded to a multiple of this, in every build
constexpr int kLargestHead = 256;
constexpr int kKeyStep = 16;               // capacities are multiples of this, in every build
constexpr float kSmallest = 1e-30f;        // a smaller maximum counts as this, so that zeros stay zeros

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

template <class V, class P> inline V load(const P* p) { V v; memcpy(&v, p, sizeof v); return v; }
template <class V, class P> inline void store(P* p, V v) { memcpy(p, &v, sizeof v); }
inline Floats splat(float x) { return x - Floats{}; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats absolute(Floats x) { return x < 0 ? -x : x; }
inline Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }
#if defined(__AVX512VNNI__)
inline float largest(Floats v) { return _mm512_reduce_max_ps((__m512)v); }
inline float sum(Floats v) { return _mm512_reduce_add_ps((__m512)v); }
inline int32_t sum(Ints v) { return _mm512_reduce_add_epi32((__m512i)v); }
#else
inline float largest(Floats v) {
    float most = v[0];
    for (int i = 1; i < kLanes; i++) most = v[i] > most ? v[i] : most;
    return most;
}
template <class V> inline auto sum(V v) {
    auto total = v[0];
    for (int i = 1; i < kLanes; i++) total += v[i];
    return total;
}
#endif

// The nearest whole number, halves to even, within +-2^22.
inline Floats rounded(Floats x) {
#if defined(__AVX512VNNI__)
    return (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: the sum has no bits for a fraction
#endif
}
inline Ints rounded_ints(Floats x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_cvtps_epi32((__m512)x);
#else
    return __builtin_convertvector(rounded(x), Ints);
#endif
}

// 2^x for x <= 127, and 2^-126 for all x below: a polynomial for the part within +-0.5, relative error 4e-6
inline Floats exp2(Floats x) {
    x = larger(x, splat(-126.0f));
    const Floats whole = rounded(x), f = x - whole;
    Floats p = splat(1.339887440266574e-3f);
    p = p * f + 9.618437357674640e-3f;
    p = p * f + 5.550332471162809e-2f;
    p = p * f + 2.402264791363012e-1f;
    p = p * f + 6.931472028550421e-1f;
    p = p * f + 1.0f;
#if defined(__AVX512VNNI__)
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
    return p * load<Floats>(&power);
#endif
}

constexpr float kLog2E = 1.44269504088896341f;

// x Phi(x). The error function is 7.1.26 of Abramowitz and Stegun, of absolute error 1.5e-7.
inline Floats gelu(Floats x) {
    const Floats z = x * 0.70710678118654752f, a = absolute(z), t = 1.0f / (1.0f + 0.3275911f * a);
    Floats p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Floats erf = 1.0f - p * t * exp2(-a * a * kLog2E);
    return 0.5f * x * (1.0f + (z < 0 ? -erf : erf));
}

// x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2)
inline Floats mish(Floats x) {
    const Floats power = exp2((x < 30.0f ? x : splat(30.0f)) * kLog2E), n = power * (power + 2.0f);
    return x * (n / (n + 2.0f));
}

// sums + four products of unsigned w and signed a, in each lane
inline Ints dot(Ints sums, Ints w, int32_t a) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(a));
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, _mm256_set1_epi32(a));
#elif defined(__AVX2__)
    // Multiplied in 16 bits: the instruction for bytes saturates sums of two products.
    const __m256i bytes = _mm256_set1_epi32(a);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), odd = _mm256_srai_epi16(bytes, 8);
    const __m256i w_even = _mm256_and_si256((__m256i)w, _mm256_set1_epi16(255));
    const __m256i w_odd = _mm256_srli_epi16((__m256i)w, 8);
    sums += (Ints)_mm256_madd_epi16(w_even, even);
    return sums + (Ints)_mm256_madd_epi16(w_odd, odd);
#else
    for (int j = 0; j < 4; j++) sums += ((w >> (8 * j)) & 255) * (int32_t)(int8_t)(a >> (8 * j));
    return sums;
#endif
}

struct Layout {  // of weights [k4][kLanes][4] for each vector of outputs: bytes from one step of k, and vector, to the next
    long step, vector;
};

// R rows of `a` times NV vectors of outputs
template <int R, int NV>
void tile(const int8_t* a, long lda, const uint8_t* w, Layout layout, int k4, int32_t* out, long ldo) {
    Ints sums[R][NV] = {};
    for (int k = 0; k < k4; k++, w += layout.step) {
        Ints column[NV];
        for (int v = 0; v < NV; v++) column[v] = load<Ints>(w + layout.vector * v);
        for (int r = 0; r < R; r++) {
            const int32_t x = load<int32_t>(a + r * lda + 4 * k);
            for (int v = 0; v < NV; v++) sums[r][v] = dot(sums[r][v], column[v], x);
        }
    }
    for (int r = 0; r < R; r++) for (int v = 0; v < NV; v++) store(out + r * ldo + v * kLanes, sums[r][v]);
}

template <int NV>
void tiles(int n_rows, const int8_t* a, long lda, const uint8_t* w, Layout layout, int k4, int32_t* out, long ldo) {
    switch (n_rows) {
        case 1: return tile<1, NV>(a, lda, w, layout, k4, out, ldo);
        case 2: return tile<2, NV>(a, lda, w, layout, k4, out, ldo);
        case 3: return tile<3, NV>(a, lda, w, layout, k4, out, ldo);
        case 4: return tile<4, NV>(a, lda, w, layout, k4, out, ldo);
#if defined(__AVX512VNNI__)
        case 5: return tile<5, NV>(a, lda, w, layout, k4, out, ldo);
        case 6: return tile<6, NV>(a, lda, w, layout, k4, out, ldo);
#endif
    }
}

// Memory of this thread that is kept from call to call.
char* scratch(size_t n_bytes) {
    static thread_local std::vector<char> bytes;
    if (bytes.size() < n_bytes) bytes.resize(n_bytes);
    return bytes.data();
}

struct Row {        // a row of activations as bytes: value = scale * byte
    float scale;
    int32_t total;  // sum of the bytes
};

// x [k] -> q [k] within 127. With `low`, also the rest of each rounding in steps of scale / 254, and its sum.
// If a value is not finite, the scale is not.
inline Row quantize(const float* x, int k, int8_t* q, int8_t* low = nullptr, int32_t* low_total = nullptr) {
    Floats most = {}, check = {};
    int i = 0;
    for (; i + kLanes <= k; i += kLanes) {
        const Floats v = load<Floats>(x + i);
        most = larger(most, absolute(v));
        check += v * 0.0f;  // zero times a NaN or an infinity is a NaN
    }
    float peak = std::fmax(largest(most), kSmallest), not_finite = sum(check);
    for (; i < k; i++) { peak = std::fmax(peak, std::fabs(x[i])); not_finite += x[i] * 0.0f; }
    const float inverse = 127 / peak;
    Ints total = {}, rest = {};
    for (i = 0; i + kLanes <= k; i += kLanes) {
        const Floats steps = load<Floats>(x + i) * inverse, high = rounded(steps);
        const Ints whole = __builtin_convertvector(high, Ints);
        total += whole;
        store(q + i, __builtin_convertvector(whole, Bytes));
        if (low) {
            const Ints small = rounded_ints((steps - high) * 254.0f);
            rest += small;
            store(low + i, __builtin_convertvector(small, Bytes));
        }
    }
    int32_t tail = 0, low_tail = 0;
    for (; i < k; i++) {
        const float steps = x[i] * inverse, high = std::nearbyint(steps);
        q[i] = (int8_t)high;
        tail += q[i];
        if (low) { low[i] = (int8_t)std::nearbyint((steps - high) * 254); low_tail += low[i]; }
    }
    if (low) *low_total = sum(rest) + low_tail;
    return {peak / 127 + not_finite, sum(total) + tail};
}

inline int round_up(int n, int step) { return (n + step - 1) / step * step; }

enum Norm { kNoNorm = 0, kLayerNorm = 1, kRmsNorm = 2 };

// x [k] -> y [k]: the norm, then each value times `weight` (LayerNorm: plus `bias`)
inline void normalize(const float* x, int k, int norm, const float* weight, const float* bias, float eps, float* y) {
    Floats total = {}, squares = {};
    float mean = 0, tail = 0;
    int i = 0;
    const int whole = k / kLanes * kLanes;
    if (norm == kLayerNorm) {
        for (i = 0; i < whole; i += kLanes) total += load<Floats>(x + i);
        for (; i < k; i++) mean += x[i];
        mean = (mean + sum(total)) / k;
    }
    for (i = 0; i < whole; i += kLanes) { const Floats d = load<Floats>(x + i) - mean; squares += d * d; }
    for (; i < k; i++) tail += (x[i] - mean) * (x[i] - mean);
    const float factor = norm == kNoNorm ? 1 : 1 / std::sqrt((tail + sum(squares)) / k + eps);
    for (i = 0; i < whole; i += kLanes) {
        Floats z = (load<Floats>(x + i) - mean) * factor * load<Floats>(weight + i);
        if (norm == kLayerNorm) z += load<Floats>(bias + i);
        store(y + i, z);
    }
    for (; i < k; i++) y[i] = (x[i] - mean) * factor * weight[i] + (norm == kLayerNorm ? bias[i] : 0);
}

}  // namespace

extern "C" {

// ------------------------------------------------------------------------------------------------------- linear maps

struct Map {
    const uint8_t* weights;    // [N / kPanel][K / 4][kPanel][4]
    const uint8_t* low;        // the rest of each rounding in steps of scale / 254; null: weights have 8 bits, not 15
    const float* scale;        // [N, rounded up to kPanel]
    const float* bias;         // the same; zeros without one
    const float* norm_weight;  // [K] or null: without it nothing precedes the product
    const float* norm_bias;    // [K], of a LayerNorm
    int n, k;
    int norm;
    float eps;
    int with_low;              // activations in 15 bits instead of 8
    int with_gelu;
};

int panel_outputs() { return kPanel; }
int key_step() { return kKeyStep; }

// float32 [n, k] -> `weights`, `low` (unless null) and `scale` of a Map: rounded with a scale per output. A weight that is
// not finite makes its output not finite.
void pack(const float* from, int n, int k, uint8_t* weights, uint8_t* low, float* scale) {
    const int k4 = round_up(k, 4) / 4;
    std::vector<int8_t> row(4 * k4), rest(4 * k4);
    for (int j = 0; j < round_up(n, kPanel); j++) {
        int32_t unused;
        scale[j] = 0;
        if (j < n) scale[j] = quantize(from + (long)j * k, k, row.data(), low ? rest.data() : nullptr, &unused).scale;
        else std::fill(row.begin(), row.end(), 0), std::fill(rest.begin(), rest.end(), 0);
        const long at = (long)(j / kPanel) * k4 * kPanel * 4 + j % kPanel * 4;
        for (int i = 0; i < k4; i++) {
            store(weights + at + (long)i * kPanel * 4, load<uint32_t>(&row[4 * i]) ^ 0x80808080u);
            if (low) store(low + at + (long)i * kPanel * 4, load<uint32_t>(&rest[4 * i]) ^ 0x80808080u);
        }
    }
}

// y [m, n] = f(norm(x) W' + b), or y + that with `add`. Rows of x may overlap (ldx < k), like the windows of a
// convolution. The rows are `n_batch` groups of m rows, `batch_x` and `batch_y` values apart.
void linear(const Map* map, const float* x, long ldx, long batch_x, int m, int n_batch, float* y, long ldy, long batch_y,
            int add) {
    const int k = map->k, kp = round_up(k, 4), n_rows = m * n_batch, n_halves = map->with_low ? 2 : 1;
    const size_t q_bytes = round_up(n_rows * n_halves * kp, 64);
    char* memory = scratch(q_bytes + (size_t)n_rows * (sizeof(Row) + sizeof(int32_t)) + k * sizeof(float));
    int8_t* high = (int8_t*)memory;
    int8_t* low = map->with_low ? high + (size_t)n_rows * kp : nullptr;
    Row* rows = (Row*)(memory + q_bytes);
    int32_t* low_totals = (int32_t*)(rows + n_rows);
    float* normed = (float*)(low_totals + n_rows);
    for (int i = 0; i < n_rows; i++) {
        const float* from = x + i / m * batch_x + i % m * ldx;
        if (map->norm_weight) {
            normalize(from, k, map->norm, map->norm_weight, map->norm_bias, map->eps, normed);
            from = normed;
        }
        int8_t* q = high + (long)i * kp;
        int8_t* q_low = low ? low + (long)i * kp : nullptr;
        rows[i] = quantize(from, k, q, q_low, low_totals + i);
        for (int j = k; j < kp; j++) { q[j] = 0; if (low) q_low[j] = 0; }
    }
    constexpr Layout kPacked{4 * kPanel, 4 * kLanes};
    int32_t sums[kRows * kPanel], low_sums[kRows * kPanel], low_weight_sums[kRows * kPanel];
    for (int column = 0; column < map->n; column += kPanel) {
        const uint8_t* panel = map->weights + (long)column * kp;
        const uint8_t* low_panel = map->low ? map->low + (long)column * kp : nullptr;
        const int n = map->n - column < kPanel ? map->n - column : kPanel;
        for (int i = 0; i < n_rows; i += kRows) {
            const int r = n_rows - i < kRows ? n_rows - i : kRows;
            tiles<kVectors>(r, high + (long)i * kp, kp, panel, kPacked, kp / 4, sums, kPanel);
            if (low) tiles<kVectors>(r, low + (long)i * kp, kp, panel, kPacked, kp / 4, low_sums, kPanel);
            if (low_panel) tiles<kVectors>(r, high + (long)i * kp, kp, low_panel, kPacked, kp / 4, low_weight_sums, kPanel);
            for (int j = 0; j < r; j++) {
                float out[kPanel];
                const Row& row = rows[i + j];
                for (int v = 0; v < kPanel; v += kLanes) {
                    Floats z = to_floats(load<Ints>(sums + j * kPanel + v) - 128 * row.total);
                    if (low) z += to_floats(load<Ints>(low_sums + j * kPanel + v) - 128 * low_totals[i + j]) * (1 / 254.0f);
                    if (low_panel) z += to_floats(load<Ints>(low_weight_sums + j * kPanel + v) - 128 * row.total) * (1 / 254.0f);
                    z = z * (row.scale * load<Floats>(map->scale + column + v)) + load<Floats>(map->bias + column + v);
                    if (map->with_gelu) z = gelu(z);
                    store(out + v, z);
                }
                float* to = y + (i + j) / m * batch_y + (i + j) % m * ldy + column;
                if (add) for (int c = 0; c < n; c++) to[c] += out[c];
                else memcpy(to, out, n * sizeof(float));
            }
        }
    }
}

// x [m, k] = mish(LayerNorm(x)), in place
void norm_mish(float* x, int m, int k, const float* weight, const float* bias, float eps) {
    for (int i = 0; i < m; i++) {
        float* row = x + (long)i * k;
        normalize(row, k, kLayerNorm, weight, bias, eps, row);
        int c = 0;
        for (; c + kLanes <= k; c += kLanes) store(row + c, mish(load<Floats>(row + c)));
        for (; c < k; c++) row[c] = mish(splat(row[c]))[0];
    }
}

// --------------------------------------------------------------------------------------------------------- attention

// Keys and values of consecutive positions: bytes with a scale per position and head.
//
//     [n_layers][n_rows][n_heads][ keys    [capacity / kLanes][d / 4][kLanes][4], 128 added
//                                  values  [capacity / 4][d, padded][4], 128 added
//                                  scales of keys [capacity], scales of values [capacity] ]
//
// A head has d dimensions, a multiple of 4 up to kLargestHead.
struct Piece {
    uint8_t* memory;
    int capacity;  // a multiple of kKeyStep
    int n;         // positions in it
};

long bytes_per_position(int d) { return d + round_up(d, kHeadStep) + 2 * (long)sizeof(float); }
int largest_head() { return kLargestHead; }

}  // extern "C"

namespace {

struct Head {  // one head of a piece
    uint8_t *keys, *values;
    float *key_scales, *value_scales;
    int n, d;

    Head(const Piece& piece, long index, int d) : n(piece.n), d(d) {
        keys = piece.memory + index * piece.capacity * bytes_per_position(d);
        values = keys + (long)piece.capacity * d;
        key_scales = (float*)(values + (long)piece.capacity * round_up(d, kHeadStep));
        value_scales = key_scales + piece.capacity;
    }
    int padded() const { return round_up(n, kLanes); }

    // Keys and values of the positions from `at` on, m of them, `ld` values apart.
    void write(int at, int m, const float* k, const float* v, long ld) {
        int8_t q[4 * kLargestHead];  // the values of four positions
        const int d_stored = round_up(d, kHeadStep);
        for (int i = 0; i < m; i++, at++) {
            if (at % kLanes == 0) {
                // What is not written yet counts as zeros.
                memset(key_scales + at, 0, kLanes * sizeof(float));
                memset(value_scales + at, 0, kLanes * sizeof(float));
            }
            key_scales[at] = quantize(k + i * ld, d, q).scale;
            uint8_t* panel = keys + (long)(at / kLanes) * kLanes * d + at % kLanes * 4;
            for (int g = 0; g < d / 4; g++) store(panel + g * kLanes * 4, load<uint32_t>(q + 4 * g) ^ 0x80808080u);
        }
        at -= m;
        for (int i = 0, n; i < m; i += n, at += n) {
            const int first = at % 4;
            n = 4 - first < m - i ? 4 - first : m - i;
            for (int j = 0; j < n; j++)
                value_scales[at + j] = quantize(v + (i + j) * ld, d, q + (first + j) * kLargestHead).scale;
            uint8_t* group = values + (long)(at / 4) * 4 * d_stored;
            int c = 0;
            if (n == 4)
                for (; c + kLanes <= d; c += kLanes) {
                    Ints four = {};
                    for (int j = 3; j >= 0; j--)
                        four = four << 8 | (__builtin_convertvector(load<Bytes>(q + j * kLargestHead + c), Ints) & 255);
                    store(group + 4 * c, four ^ (int32_t)0x80808080);
                }
            for (; c < d; c++)
                for (int j = first; j < first + n; j++) group[4 * c + j] = (uint8_t)(q[j * kLargestHead + c] ^ 0x80);
        }
    }
};

// One head, kRows queries at most. A weight of a value is 2^(score - largest) times the scale of the value. It becomes a
// whole number of 14 bits in two bytes, 128 high + low, in steps of `step` for the head.
void attend_rows(const float* q, long ldq, int r, const Head* heads, int n_pieces, int width, float step, char* memory,
                 float* out, long ldo) {
    float* scores = (float*)memory;                                // [kRows][width]
    int32_t* products = (int32_t*)(scores + (long)kRows * width);  // [kRows][width]
    int8_t* high = (int8_t*)(products + (long)kRows * width);      // [kRows][width]
    int8_t* low = high + (long)kRows * width;
    const int d_head = heads[0].d, d_stored = round_up(d_head, kHeadStep);
    int8_t queries[kRows * kLargestHead];
    Row rows[kRows];
    float most[kRows], factor[kRows];
    int32_t totals[kRows];
    for (int j = 0; j < r; j++) { rows[j] = quantize(q + j * ldq, d_head, queries + j * d_head); most[j] = -INFINITY; }
    int at = 0;
    for (int p = 0; p < n_pieces; at += heads[p++].padded()) {
        const Head& head = heads[p];
        const Layout layout{4 * kLanes, (long)kLanes * d_head};
        int c = 0;
        for (; c + kLanes < head.n; c += 2 * kLanes)
            tiles<2>(r, queries, d_head, head.keys + (long)c * d_head, layout, d_head / 4, products + at + c, width);
        if (c < head.n)
            tiles<1>(r, queries, d_head, head.keys + (long)c * d_head, layout, d_head / 4, products + at + c, width);
        for (int j = 0; j < r; j++) {
            const float scale = rows[j].scale * kLog2E / std::sqrt((float)d_head);
            const int32_t offset = 128 * rows[j].total;
            Floats peak = splat(most[j]);
            for (c = 0; c < head.n; c += kLanes) {
                Floats z = to_floats(load<Ints>(products + (long)j * width + at + c) - offset);
                z *= scale * load<Floats>(head.key_scales + c);
                for (int l = head.n - c; l < kLanes; l++) z[l] = -INFINITY;
                peak = larger(peak, z);
                store(scores + (long)j * width + at + c, z);
            }
            most[j] = largest(peak);
        }
    }
    for (int j = 0; j < r; j++) {
        Floats total = {};
        Ints weights = {};
        at = 0;
        for (int p = 0; p < n_pieces; at += heads[p++].padded())
            for (int c = 0; c < heads[p].n; c += kLanes) {
                const long i = (long)j * width + at + c;
                const Floats weight = exp2(load<Floats>(scores + i) - most[j]);
                total += weight;
                const Ints whole = rounded_ints(weight * (load<Floats>(heads[p].value_scales + c) * (1 / step)));
                weights += whole;
                store(high + i, __builtin_convertvector(whole >> 7, Bytes));
                store(low + i, __builtin_convertvector(whole & 127, Bytes));
            }
        factor[j] = step / sum(total);
        totals[j] = sum(weights);
    }
    for (int d = 0; d < d_head; d += kPanel) {
        Floats result[kRows][kVectors] = {};
        at = 0;
        for (int p = 0; p < n_pieces; at += heads[p++].padded()) {
            int32_t sums[2][kRows * kPanel];
            for (int half = 0; half < 2; half++)
                tiles<kVectors>(r, (half ? low : high) + at, width, heads[p].values + 4 * d,
                                Layout{4 * d_stored, 4 * kLanes}, heads[p].padded() / 4, sums[half], kPanel);
            for (int j = 0; j < r; j++) for (int v = 0; v < kVectors; v++)
                result[j][v] += to_floats(load<Ints>(sums[0] + j * kPanel + v * kLanes)) * 128.0f +
                                to_floats(load<Ints>(sums[1] + j * kPanel + v * kLanes));
        }
        for (int j = 0; j < r; j++) {
            float found[kPanel];
            for (int v = 0; v < kVectors; v++) store(found + v * kLanes, (result[j][v] - 128.0f * totals[j]) * factor[j]);
            memcpy(out + j * ldo + d, found, sizeof(float) * (d_head - d < kPanel ? d_head - d : kPanel));
        }
    }
}

}  // namespace

extern "C" {

// qkv [n_rows][m][3 * n_heads * d_head] -> out [n_rows][m][n_heads * d_head]: softmax(q k / sqrt(d_head)) v over the
// positions of all pieces of a layer. First the new keys and values are written behind the positions of the last piece. The caller counts
// them in its n for later calls. Positions are seen by whole blocks: one sees all others up to the end of its own block.
void attend(const float* qkv, int n_rows, int m, int n_heads, int d_head, int layer, int block, const Piece* pieces,
            int n_pieces, float* out) {
    const long d = (long)n_heads * d_head;
    int n_before = 0, width = round_up(pieces[n_pieces - 1].n + m, kLanes);
    for (int p = 0; p < n_pieces; p++) n_before += pieces[p].n;
    for (int p = 0; p < n_pieces - 1; p++) width += round_up(pieces[p].n, kLanes);
    char* memory = scratch((size_t)kRows * width * 10);
    std::vector<Head> heads;
    for (int row = 0; row < n_rows; row++) for (int h = 0; h < n_heads; h++) {
        heads.clear();
        for (int p = 0; p < n_pieces; p++) heads.emplace_back(pieces[p], ((long)layer * n_rows + row) * n_heads + h, d_head);
        const float* q = qkv + row * m * 3 * d + h * d_head;
        Head& last = heads.back();
        const int n_last = last.n;
        last.write(n_last, m, q + d, q + 2 * d, 3 * d);
        last.n += m;
        Floats top = splat(kSmallest);
        for (const Head& head : heads)
            for (int c = 0; c < head.n; c += kLanes) top = larger(top, load<Floats>(head.value_scales + c));
        const float step = largest(top) / 16383;
        for (int i = 0, r; i < m; i += r) {
            const int left = block - (n_before + i) % block;  // positions of this block
            r = left < m - i ? left : m - i;
            last.n = n_last + i + r;
            r = r < kRows ? r : kRows;
            attend_rows(q + i * 3 * d, 3 * d, r, heads.data(), n_pieces, width, step, memory,
                        out + ((long)row * m + i) * d + h * d_head, d);
        }
    }
}

}  // extern "C"
