// Int8 linear maps and attention for a CPU, and a step of a language model made of them. `model/linear.py`,
// `model/flow/int8_layers.py`, `int8_pages.py` and `model/lm/int8_decoder.py` call them.
//
// Every sum of products is a sum of integers, so it is exact: it depends neither on the number of rows nor on the build
// that `library.py` chooses. All else is computed row by row.
//
//     weights      unsigned bytes, 128 added, in panels [K / 4][kPanel][4]: four weights of an output lie side by side
//     activations  signed bytes in rows [M][K]
//     dot          4 x kLanes products added to kLanes sums of 32 bits: one instruction with VNNI
//
// The 128 is taken out afterwards: sum(a * (w + 128)) - 128 * sum(a) = sum(a * w).

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "sharing.h"
#include "vectors.h"
#include "tiles.h"

namespace {

#if defined(__AVX512VNNI__)
constexpr int kVectors = 4, kRows = 6;
#else
constexpr int kVectors = 2, kRows = 4;
#endif
#if WITH_TILES
constexpr int kMostRows = 2 * kTileRows;
#else
constexpr int kMostRows = kRows;
#endif
constexpr int kPanel = kLanes * kVectors;  // outputs that a tile computes, of kRows rows at most
constexpr int kHeadStep = 64;              // values of a head are padded to a multiple of this, in every build
constexpr int kLargestHead = 256;
constexpr int kParts = 8;                  // of a call that threads may share
constexpr int kPartsOfFewRows = 16;        // of panels, if there are few rows: to read a panel takes longest
constexpr int kShared = 24;                // calls of fewer rows do not share what is done row by row
constexpr long kAhead = 2048;              // bytes of weights that a Zen 5 fetches ahead of those in use
constexpr int kSummed = 1024;              // weights of 14 bits, times bytes, that 32 bits can sum
constexpr int kKeyStep = 16;               // capacities are multiples of this, in every build
constexpr float kSmallest = 1e-30f;        // a smaller maximum counts as this, so that zeros stay zeros

// x Phi(x) = max(x, 0) - |x| Phi(-|x|). Phi(-u) is a polynomial up to kGeluEnd, absolute error of the result 1.4e-4: it is
// rounded to bytes next, in steps of 1/127 of the row's peak.
inline Floats gelu(Floats x) {
    constexpr float kGeluEnd = 3.8f;
    const Floats size = absolute(x), u = smaller(splat(kGeluEnd), size), t = u * (2 / kGeluEnd) - 1.0f;  // a NaN stays
    Floats p = splat(-0.0345624698f);
    p = p * t + 0.0676621312f;
    p = p * t + 0.0281904694f;
    p = p * t - 0.191588084f;
    p = p * t + 0.226719594f;
    p = p * t - 0.12507126f;
    p = p * t + 0.0286857906f;
    return (x + size) * 0.5f - p * u;  // of minus infinity a NaN, as the formula has
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

template <int R, int NV>
inline __attribute__((always_inline)) void add_products(Ints (&sums)[R][NV], const int8_t* a, long lda, const uint8_t* w,
                                                        long vector) {
    Ints column[NV];
    for (int v = 0; v < NV; v++) column[v] = load<Ints>(w + vector * v);
    for (int r = 0; r < R; r++) {
        const int32_t x = load<int32_t>(a + r * lda);
        for (int v = 0; v < NV; v++) sums[r][v] = dot(sums[r][v], column[v], x);
    }
}

enum Reading { kCached, kInOrder, kFetched };  // how a tile reads weights: in a cache, or from memory in one of two ways

// R rows of `a` times NV vectors of outputs: each(row, vector, sums)
template <int R, int NV, Reading kReading, class Each>
inline void tile(const int8_t* a, long lda, const uint8_t* w, Layout layout, int k4, const Each& each) {
    Ints sums[R][NV];
    for (int r = 0; r < R; r++) for (int v = 0; v < NV; v++) sums[r][v] = Ints{};
    int k = 0;
    // Few rows take less time to compute than their weights to arrive.
    constexpr bool kIsFew = R < kRows, kInFours = kReading != kInOrder || !kIsFew;
    // Four steps in one go: on Zen 5 a loop of single steps takes 1.8 times as long. But then the compiler reorders the loads
    // of four steps, and the prefetcher of a Zen 4 predicts them less well: two decode rows took 18 ms in place of 13.
    if (kInFours)
        for (; k + 4 <= k4; k += 4, a += 16, w += 4 * layout.step)
            for (int u = 0; u < 4; u++) {
                if (kReading == kFetched && kIsFew)
                    for (int v = 0; v < NV; v++) __builtin_prefetch(w + u * layout.step + v * layout.vector + kAhead);
                add_products<R, NV>(sums, a + 4 * u, lda, w + u * layout.step, layout.vector);
            }
#pragma GCC unroll 1
    for (; k < k4; k++, a += 4, w += layout.step) add_products<R, NV>(sums, a, lda, w, layout.vector);
    // Unrolled, or the sums go through memory.
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) each(r, v, sums[r][v]);
}

// `tile` of n_rows: kRows at most, or kMostRows of a map
template <int NV, Reading kReading = kCached, class Each>
void tiles(int n_rows, const int8_t* a, long lda, const uint8_t* w, Layout layout, int k4, const Each& each) {
#if WITH_TILES
    if constexpr (NV == kVectors)
        if (n_rows > kRows) return products_of_tiles<Ints, NV>(n_rows, {a, lda, 4 * k4, 1, 0}, w, each);
#endif
    switch (n_rows) {
        case 1: return tile<1, NV, kReading>(a, lda, w, layout, k4, each);
        case 2: return tile<2, NV, kReading>(a, lda, w, layout, k4, each);
        case 3: return tile<3, NV, kReading>(a, lda, w, layout, k4, each);
        case 4: return tile<4, NV, kReading>(a, lda, w, layout, k4, each);
#if defined(__AVX512VNNI__)
        case 5: return tile<5, NV, kReading>(a, lda, w, layout, k4, each);
        case 6: return tile<6, NV, kReading>(a, lda, w, layout, k4, each);
#endif
    }
}

// `tiles` of `n` outputs, or of kPanel if there are more
template <class Each>
void vectors_of(int n, int n_rows, const int8_t* a, long lda, const uint8_t* w, Layout layout, int k4, const Each& each) {
    switch (n / kLanes) {
        case 1: return tiles<1>(n_rows, a, lda, w, layout, k4, each);
#if defined(__AVX512VNNI__)
        case 2: return tiles<2>(n_rows, a, lda, w, layout, k4, each);
        case 3: return tiles<3>(n_rows, a, lda, w, layout, k4, each);
#endif
        default: return tiles<kVectors>(n_rows, a, lda, w, layout, k4, each);
    }
}

// Of n rows of a map, each of which is n_each rows of bytes, those to give to `tiles` in one call.
inline int rows_at_once(int n, int n_each) {
    if (n * n_each < 2 * kRows) return kRows / n_each;
    const int most = kMostRows / n_each, n_calls = (n + most - 1) / most;
    return (n + n_calls - 1) / n_calls;
}

// Whether weights of few rows are to be fetched ahead. A Zen 5 gains 8 % by it. A Zen 4 loses 20 %: it does so by itself.
bool fetches_ahead() {
    static const bool is_zen5 = [] {
#if defined(__x86_64__)
        unsigned a = 0, b = 0, c = 0, d = 0;
        __get_cpuid(0, &a, &b, &c, &d);
        const bool is_amd = b == signature_AMD_ebx;
        __get_cpuid(1, &a, &b, &c, &d);
        return is_amd && (a >> 8 & 15) + (a >> 20 & 255) == 0x1a;
#else
        return false;
#endif
    }();
    return is_zen5;
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
    // Bits of a positive float are in its order, and those of infinity and of NaNs come last.
    Ints most = {};
    int i = 0;
    for (; i + kLanes <= k; i += kLanes) most = larger(most, load<Ints>(x + i) & 0x7fffffff);
    int32_t bits = largest(most);
    for (; i < k; i++) { const int32_t tail = load<int32_t>(x + i) & 0x7fffffff; bits = tail > bits ? tail : bits; }
    const bool is_finite = bits < 0x7f800000;
    const float found = load<float>(&bits), peak = !is_finite ? 1 : found > kSmallest ? found : kSmallest;
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
    return {is_finite ? peak / 127 : NAN, sum(total) + tail};
}

inline int round_up(int n, int step) { return (n + step - 1) / step * step; }

enum Norm { kNoNorm = 0, kLayerNorm = 1, kRmsNorm = 2 };

// The sum of f(i) for i = 0, kLanes, ... below `end`: four sums, or each addition would wait for the one before.
template <class F> inline Floats sum_of(int end, const F& f) {
    Floats sums[4] = {};
    int i = 0;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) for (int u = 0; u < 4; u++) sums[u] += f(i + u * kLanes);
    for (; i < end; i += kLanes) sums[0] += f(i);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// x [k] -> y [k]: the norm, then each value times `weight` (LayerNorm: plus `bias`)
inline void normalize(const float* x, int k, int norm, const float* weight, const float* bias, float eps, float* y) {
    float mean = 0, tail = 0;
    int i = 0;
    const int whole = k / kLanes * kLanes;
    if (norm == kLayerNorm) {
        const Floats total = sum_of(whole, [&](int at) { return load<Floats>(x + at); });
        for (i = whole; i < k; i++) mean += x[i];
        mean = (mean + sum(total)) / k;
    }
    const Floats squares = sum_of(whole, [&](int at) { const Floats d = load<Floats>(x + at) - mean; return d * d; });
    for (i = whole; i < k; i++) tail += (x[i] - mean) * (x[i] - mean);
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

}  // extern "C"

namespace {

// Store, or add, the first n of kLanes outputs.
__attribute__((noinline)) void put_some(Floats z, float* to, int n, bool add) {
    for (int c = 0; c < n && c < kLanes; c++) to[c] = add ? to[c] + z[c] : z[c];
}

struct Rows {  // quantised activations; with 15 bits each row has two: the bytes, and the rest of their rounding
    const int8_t* bytes;
    const Row* rows;
    const int32_t* low_totals;
    int n, stride;  // bytes from one row to the next
};

// The outputs `column` ... of `map` for all rows. to(row): where the first output of the map belongs.
template <bool kWithLow, class To> void panel_outputs_of(const Map& map, const Rows& a, int column, bool add, const To& to) {
    constexpr Layout kPacked{4 * kPanel, 4 * kLanes};
    constexpr float kLowStep = 1 / 254.0f;
    constexpr int kMost = kWithLow ? kMostRows / 2 : kMostRows;
    const int step = rows_at_once(a.n, kWithLow ? 2 : 1);
    const int kp = round_up(map.k, 4);
    const uint8_t* panel = map.weights + (long)column * kp;
    const uint8_t* next = panel + (long)kPanel * kp;
    // Bytes of the next panel, with each row. Many at once would keep other loads waiting.
    const long n_prefetched = column + kPanel < map.n && a.n >= 4 * kRows ? (long)kPanel * kp / a.n : 0;
    const float *scale = map.scale + column, *bias = map.bias + column;
    const int n = map.n - column;
    const bool is_whole = n >= kPanel;
    float rest[kMost * kPanel];  // of the low bytes of weights
    for (int i = 0; i < a.n; i += step) {
        const int r = a.n - i < step ? a.n - i : step;
        const int8_t* bytes = a.bytes + (long)i * a.stride;
        const Row* rows = a.rows + i;
        float* out[kMost];
        for (int j = 0; j < r; j++) out[j] = to(i + j) + column;
        if (map.low)
            tiles<kVectors>(r, bytes, a.stride, map.low + (long)column * kp, kPacked, kp / 4, [&](int j, int v, Ints sums) {
                store(rest + j * kPanel + v * kLanes, to_floats(sums - 128 * rows[j].total) * kLowStep);
            });
        const auto finish = [&](int j, int v, Floats z) {
            const int c = v * kLanes;
            if (v == 0)
                for (long line = n_prefetched * (i + j) / 64; line < n_prefetched * (i + j + 1) / 64; line++)
                    __builtin_prefetch(next + 64 * line, 0, 2);
            if (map.low) z += load<Floats>(rest + j * kPanel + c);
            z = z * (rows[j].scale * load<Floats>(scale + c)) + load<Floats>(bias + c);
            float* to = out[j] + c;
            if (is_whole) store(to, add ? load<Floats>(to) + z : z);
            else put_some(z, to, n - c, add);
        };
        if constexpr (kWithLow) {
            Floats high[kVectors];
            const auto each = [&](int j, int v, Ints sums) {
                if (j % 2 == 0) high[v] = to_floats(sums - 128 * rows[j / 2].total);
                else finish(j / 2, v, high[v] + to_floats(sums - 128 * a.low_totals[i + j / 2]) * kLowStep);
            };
            // The first rows bring the panel into a cache.
            if (fetches_ahead()) tiles<kVectors, kFetched>(2 * r, bytes, a.stride / 2, panel, kPacked, kp / 4, each);
            else if (i == 0) tiles<kVectors, kInOrder>(2 * r, bytes, a.stride / 2, panel, kPacked, kp / 4, each);
            else tiles<kVectors>(2 * r, bytes, a.stride / 2, panel, kPacked, kp / 4, each);
        } else {
            tiles<kVectors>(r, bytes, a.stride, panel, kPacked, kp / 4, [&](int j, int v, Ints sums) {
                finish(j, v, to_floats(sums - 128 * rows[j].total));
            });
        }
        if (map.with_gelu)
            for (int j = 0; j < r; j++) {
                float* to = out[j];
                int c = 0;
                for (; c + kLanes <= n && c < kPanel; c += kLanes) store(to + c, gelu(load<Floats>(to + c)));
                for (; c < n && c < kPanel; c++) to[c] = gelu(splat(to[c]))[0];
            }
    }
}

}  // namespace

extern "C" {

// y [m, n] = f(norm(x) W' + b), or y + that with `add`. Rows of x may overlap (ldx < k), like the windows of a
// convolution. The rows are `n_batch` groups of m rows, `batch_x` and `batch_y` values apart.
void linear(const Map* map, const float* x, long ldx, long batch_x, int m, int n_batch, float* y, long ldy, long batch_y,
            int add) {
    const int k = map->k, kp = round_up(k, 4), n_rows = m * n_batch, stride = kp * (map->with_low ? 2 : 1);
    const int n_parts = n_rows < kShared ? 1 : kParts;
    if (n_rows < 1) return;
    const size_t q_bytes = round_up((n_rows + 1) * stride, 64);  // `tiles` may read a row more
    char* memory = scratch(q_bytes + (size_t)n_rows * (sizeof(Row) + sizeof(int32_t)) + (size_t)n_parts * k * sizeof(float));
    int8_t* bytes = (int8_t*)memory;
    Row* rows = (Row*)(memory + q_bytes);
    int32_t* low_totals = (int32_t*)(rows + n_rows);
    float* normed = (float*)(low_totals + n_rows);
    share(n_parts, [&](int part) {
        for (int i = (long)n_rows * part / n_parts; i < (long)n_rows * (part + 1) / n_parts; i++) {
            const float* from = x + i / m * batch_x + i % m * ldx;
            if (map->norm_weight) {
                float* to = normed + (long)part * k;
                normalize(from, k, map->norm, map->norm_weight, map->norm_bias, map->eps, to);
                from = to;
            }
            int8_t* q = bytes + (long)i * stride;
            int8_t* low = map->with_low ? q + kp : nullptr;
            rows[i] = quantize(from, k, q, low, low_totals + i);
            for (int j = k; j < kp; j++) { q[j] = 0; if (low) low[j] = 0; }
        }
    });
    const Rows a{bytes, rows, low_totals, n_rows, stride};
    const auto to = [&](int i) { return y + i / m * batch_y + i % m * ldy; };
    const int n_panels = (map->n + kPanel - 1) / kPanel;
    const int n_shares = std::min(n_panels, n_rows < kShared ? kPartsOfFewRows : kParts);
    share(n_shares, [&](int part) {
        const TilesReleased at_end;
        for (int p = n_panels * part / n_shares; p < n_panels * (part + 1) / n_shares; p++)
            if (map->with_low) panel_outputs_of<true>(*map, a, p * kPanel, add, to);
            else panel_outputs_of<false>(*map, a, p * kPanel, add, to);
    });
}

struct NormMish {  // of a convolution's output
    const float *weight, *bias;
    float eps;
};

}  // extern "C"

namespace {

// x [m, k] = mish(LayerNorm(x)) + after [k], in place; `after` may be null. Groups of m rows as of `linear`
void norm_mish_rows(const NormMish& norm, float* x, int k, long batch_x, int m, int n_batch, const float* after) {
    const int n = m * n_batch, n_parts = n < kShared ? 1 : kParts;
    share(n_parts, [&](int part) {
        for (int i = (long)n * part / n_parts; i < (long)n * (part + 1) / n_parts; i++) {
            float* row = x + i / m * batch_x + (long)(i % m) * k;
            normalize(row, k, kLayerNorm, norm.weight, norm.bias, norm.eps, row);
            int c = 0;
            for (; c + kLanes <= k; c += kLanes) store(row + c, mish(load<Floats>(row + c)));
            for (; c < k; c++) row[c] = mish(splat(row[c]))[0];
            if (after) for (c = 0; c < k; c++) row[c] += after[c];
        }
    });
}

}  // namespace

extern "C" {

// x [m, k] = mish(LayerNorm(x)), in place
void norm_mish(float* x, int m, int k, const float* weight, const float* bias, float eps) {
    norm_mish_rows({weight, bias, eps}, x, k, 0, m, 1, nullptr);
}

struct Resnet {  // y = CB(CB(x) + time) + skip x, where CB is a causal convolution, LayerNorm and Mish
    const Map *conv_1, *conv_2, *skip;
    NormMish norm_1, norm_2;
};

struct LeftContext {  // frames before the block, and where the last frames of the block are kept for the next one
    const float* frames;  // [n_rows][n_left][d]
    float* next;          // the same, in other memory
};

}  // extern "C"

namespace {

// x [n_rows][m][d] has room for n_left frames before each of its rows: put them there, and keep the last ones.
void join(const LeftContext& left, float* x, int n_rows, int m, int n_left, int d) {
    const long size = (long)n_left * d, row = (long)(n_left + m) * d;
    for (int i = 0; i < n_rows; i++) {
        memcpy(x + i * row, left.frames + i * size, size * sizeof(float));
        memcpy(left.next + i * size, x + (i + 1) * row - size, size * sizeof(float));
    }
}

}  // namespace

extern "C" {

// x [n_rows][m][d_in] -> y [n_rows][m][D]; time [D]; contexts of both convolutions
void resnet(const Resnet* of, const float* x, int n_rows, int m, const LeftContext* contexts, const float* time, float* y) {
    const int d_in = of->skip->k, d = of->skip->n, n_left = of->conv_1->k / d_in - 1;
    // A thread for each row: it waits for the other one once, and its activations stay in the caches of its core.
    if (fills_helpers(n_rows))
        return share(n_rows, [&](int i) {
            const long at[2] = {(long)i * n_left * d_in, (long)i * n_left * d};
            LeftContext of_row[2];
            for (int c = 0; c < 2; c++) of_row[c] = {contexts[c].frames + at[c], contexts[c].next + at[c]};
            resnet(of, x + (long)i * m * d_in, 1, m, of_row, time, y + (long)i * m * d);
        });
    const long row_in = (long)(n_left + m) * d_in, row = (long)(n_left + m) * d;
    static thread_local std::vector<float> memory;
    memory.resize(n_rows * (row_in + row));
    float *joined = memory.data(), *inner = joined + n_rows * row_in;
    for (int i = 0; i < n_rows; i++)
        memcpy(joined + i * row_in + (long)n_left * d_in, x + (long)i * m * d_in, (long)m * d_in * sizeof(float));
    join(contexts[0], joined, n_rows, m, n_left, d_in);
    float* behind = inner + (long)n_left * d;
    linear(of->conv_1, joined, d_in, row_in, m, n_rows, behind, d, row, false);
    norm_mish_rows(of->norm_1, behind, d, row, m, n_rows, time);
    join(contexts[1], inner, n_rows, m, n_left, d);
    linear(of->conv_2, inner, d, row, m, n_rows, y, d, (long)m * d, false);
    norm_mish_rows(of->norm_2, y, d, (long)m * d, m, n_rows, nullptr);
    linear(of->skip, x, d_in, 0, n_rows * m, 1, y, d, 0, true);
}

// --------------------------------------------------------------------------------------------------------- attention

// Keys and values of consecutive positions: bytes with a scale per position and head.
//
//     [n_layers][n_rows][n_heads][ keys    [capacity / kLanes][d / 4][kLanes][4], 128 added
//                                  values  [capacity / 2][d, padded][2]
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
    uint8_t* keys;
    int8_t* values;
    float *key_scales, *value_scales;
    int n, d;

    Head(const Piece& piece, long index, int d) : n(piece.n), d(d) {
        keys = piece.memory + index * piece.capacity * bytes_per_position(d);
        values = (int8_t*)keys + (long)piece.capacity * d;
        key_scales = (float*)(values + (long)piece.capacity * round_up(d, kHeadStep));
        value_scales = key_scales + piece.capacity;
    }
    int padded() const { return round_up(n, kLanes); }

    // Keys and values of the positions from `at` on, m of them, `ld` values apart.
    void write(int at, int m, const float* k, const float* v, long ld) {
        int8_t q[2 * kLargestHead];  // the values of two positions
        // Copies: a store of bytes could change the members, as far as the compiler knows.
        const int d = this->d, d_stored = round_up(d, kHeadStep), n_groups = d / 4;
        float *const key_scales = this->key_scales, *const value_scales = this->value_scales;
        uint8_t* const keys = this->keys;
        int8_t* const values = this->values;
        for (int i = 0; i < m; i++, at++) {
            if (at % kLanes == 0) {
                // What is not written yet counts as zeros.
                memset(key_scales + at, 0, kLanes * sizeof(float));
                memset(value_scales + at, 0, kLanes * sizeof(float));
            }
            key_scales[at] = quantize(k + i * ld, d, q).scale;
            uint8_t* panel = keys + (long)(at / kLanes) * kLanes * d + at % kLanes * 4;
            for (int g = 0; g < n_groups; g++) store(panel + g * kLanes * 4, load<uint32_t>(q + 4 * g) ^ 0x80808080u);
        }
        at -= m;
        for (int i = 0, n; i < m; i += n, at += n) {
            const int first = at % 2;
            n = 2 - first < m - i ? 2 - first : m - i;
            for (int j = 0; j < n; j++)
                value_scales[at + j] = quantize(v + (i + j) * ld, d, q + (first + j) * kLargestHead).scale;
            int8_t* pair = values + (long)(at / 2) * 2 * d_stored;
            int c = 0;
            if (n == 2)
                for (; c + kLanes <= d; c += kLanes) {
                    const Shorts low = __builtin_convertvector(load<Bytes>(q + c), Shorts);
                    const Shorts high = __builtin_convertvector(load<Bytes>(q + kLargestHead + c), Shorts);
                    store(pair + 2 * c, (low & 255) | high << 8);
                }
            for (; c < d; c++)
                for (int j = first; j < first + n; j++) pair[2 * c + j] = q[j * kLargestHead + c];
        }
    }
};

// Fetch the bytes of about kRows of m rows from `i` on, if all rows share n_bytes.
inline void prefetch(const uint8_t* from, long n_bytes, int i, int m) {
    const long end = std::min(n_bytes, n_bytes * (i + kRows) / m);
    for (long at = n_bytes * i / m / 64 * 64; at < end; at += 64) __builtin_prefetch(from + at, 0, 2);
}

typedef int16_t Pairs __attribute__((vector_size(4 * kLanes)));  // two numbers in each lane

inline Pairs widened(const int8_t* bytes) {
#if defined(__AVX512VNNI__)
    return (Pairs)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)bytes));
#elif defined(__AVX2__)
    return (Pairs)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)bytes));
#else
    typedef int8_t Narrow __attribute__((vector_size(2 * kLanes)));
    return __builtin_convertvector(load<Narrow>(bytes), Pairs);
#endif
}

// sums + two products for each lane, of numbers of 16 bits
inline Ints dot_pairs(Ints sums, Pairs values, int32_t weights) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)values, _mm512_set1_epi32(weights));
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)values, _mm256_set1_epi32(weights));
#elif defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)values, _mm256_set1_epi32(weights));
#else
    const Ints both = (Ints)values;
    return sums + (both << 16 >> 16) * (int32_t)(int16_t)weights + (both >> 16) * (weights >> 16);
#endif
}

// Adds weights [R][width] times values [n_pairs][d_stored][2], of one vector of outputs for each of NV: each(row, vector, sums)
template <int R, class Each>
inline void weigh(const int16_t* weights, long width, const int8_t* values, long d_stored, int n_pairs, const Each& each) {
    Ints sums[R][kVectors];
    for (int r = 0; r < R; r++) for (int v = 0; v < kVectors; v++) sums[r][v] = Ints{};
    for (int p = 0; p < n_pairs; p += 4)
        for (int u = p; u < p + 4; u++, values += 2 * d_stored) {
            Pairs column[kVectors];
            for (int v = 0; v < kVectors; v++) column[v] = widened(values + 2 * kLanes * v);
            for (int r = 0; r < R; r++) {
                const int32_t pair = load<int32_t>(weights + r * width + 2 * u);
                for (int v = 0; v < kVectors; v++) sums[r][v] = dot_pairs(sums[r][v], column[v], pair);
            }
        }
    for (int r = 0; r < R; r++) for (int v = 0; v < kVectors; v++) each(r, v, sums[r][v]);
}

template <class Each>
void weigh(int n_rows, const int16_t* weights, long width, const int8_t* values, long d_stored, int n_pairs, const Each& each) {
    switch (n_rows) {
        case 1: return weigh<1>(weights, width, values, d_stored, n_pairs, each);
        case 2: return weigh<2>(weights, width, values, d_stored, n_pairs, each);
        case 3: return weigh<3>(weights, width, values, d_stored, n_pairs, each);
        case 4: return weigh<4>(weights, width, values, d_stored, n_pairs, each);
#if defined(__AVX512VNNI__)
        case 5: return weigh<5>(weights, width, values, d_stored, n_pairs, each);
        case 6: return weigh<6>(weights, width, values, d_stored, n_pairs, each);
#endif
    }
}

// One head, kRows queries at most. A weight of a value is 2^(score - largest) times the scale of the value. It becomes a
// whole number of 14 bits in steps of `step` for the head. value_steps [width]: scales of the values, divided by `step`
void attend_rows(const float* q, long ldq, int r, const Head* heads, int n_pieces, int width, const float* value_steps,
                 float step, char* memory, float* out, long ldo) {
    float* scores = (float*)memory;                            // [kRows][width]
    int16_t* weights = (int16_t*)(scores + (long)kRows * width);  // [kRows][width]
    const int d_head = heads[0].d, d_stored = round_up(d_head, kHeadStep);
    int8_t queries[kRows * kLargestHead];
    Row rows[kRows];
    float factor[kRows], scale[kRows], peaks[kRows];
    Floats totals[kRows];
    for (int j = 0; j < r; j++) {
        rows[j] = quantize(q + j * ldq, d_head, queries + j * d_head);
        scale[j] = rows[j].scale * kLog2E / std::sqrt((float)d_head);
    }
    int at = 0;
    for (int p = 0; p < n_pieces; at += heads[p++].padded()) {
        const Head head = heads[p];
        for (int c = 0; c < head.n; c += kPanel) {
            float* to = scores + at + c;
            const float* key_scales = head.key_scales + c;
            vectors_of(head.padded() - c, r, queries, d_head, head.keys + (long)c * d_head,
                       Layout{4 * kLanes, (long)kLanes * d_head}, d_head / 4, [&](int j, int v, Ints sums) {
                           store(to + (long)j * width + v * kLanes,
                                 to_floats(sums - 128 * rows[j].total) * load<Floats>(key_scales + v * kLanes));
                       });
        }
        for (int j = 0; j < r; j++) std::fill(scores + (long)j * width + at + head.n, scores + (long)j * width + at + head.padded(), -INFINITY);
    }
    // The peaks of all rows first: otherwise the exponentials of each row wait for its peak.
    for (int j = 0; j < r; j++) {
        Floats most = splat(-INFINITY);
        for (int c = 0; c < at; c += kLanes) most = larger(most, load<Floats>(scores + (long)j * width + c));
        peaks[j] = largest(most) * scale[j];
    }
    for (int j = 0; j < r; j++) {
        totals[j] = Floats{};
        for (int c = 0; c < at; c += kLanes) {
            const Floats weight = exp2(load<Floats>(scores + (long)j * width + c) * scale[j] - peaks[j]);
            totals[j] += weight;
            const Ints whole = rounded_ints(weight * load<Floats>(value_steps + c));
            store(weights + (long)j * width + c, __builtin_convertvector(whole, Shorts));
        }
    }
    for (int j = 0; j < r; j++) factor[j] = step / sum(totals[j]);
    for (int d = 0; d < d_head; d += kPanel) {
        Floats result[kRows][kVectors] = {};
        at = 0;
        for (int p = 0; p < n_pieces; at += heads[p++].padded())
            for (int c = 0, n = heads[p].padded(); c < n; c += kSummed)
                weigh(r, weights + at + c, width, heads[p].values + (long)c * d_stored + 2 * d, d_stored,
                      (n - c < kSummed ? n - c : kSummed) / 2,
                      [&](int j, int v, Ints sums) { result[j][v] += to_floats(sums); });
        for (int j = 0; j < r; j++) {
            float found[kPanel];
            for (int v = 0; v < kVectors; v++) store(found + v * kLanes, result[j][v] * factor[j]);
            memcpy(out + j * ldo + d, found, sizeof(float) * (d_head - d < kPanel ? d_head - d : kPanel));
        }
    }
}

// `attend` for n_rows rows only, whose heads of the layer lie in the pieces from `first_head` on.
void attend_heads(const float* qkv, int n_rows, int m, int n_heads, int d_head, long first_head, int block,
                  const Piece* pieces, int n_pieces, float* out) {
    const long d = (long)n_heads * d_head;
    int n_before = 0, width = round_up(pieces[n_pieces - 1].n + m, kLanes);
    for (int p = 0; p < n_pieces; p++) n_before += pieces[p].n;
    for (int p = 0; p < n_pieces - 1; p++) width += round_up(pieces[p].n, kLanes);
    // Each head is computed by one thread.
    share(n_rows * n_heads, [&](int part) {
        const int row = part / n_heads, h = part % n_heads;
        char* memory = scratch((size_t)width * (kRows * 6 + 4));
        float* value_steps = (float*)(memory + (size_t)width * kRows * 6);
        static thread_local std::vector<Head> heads;
        heads.clear();
        for (int p = 0; p < n_pieces; p++) heads.emplace_back(pieces[p], first_head + part, d_head);
        const float* q = qkv + row * m * 3 * d + h * d_head;
        Head& last = heads.back();
        const int n_last = last.n;
        last.write(n_last, m, q + d, q + 2 * d, 3 * d);
        last.n += m;
        const Floats smallest = splat(kSmallest);
        Ints top = load<Ints>(&smallest);  // bits of scales are in their order, and those of a NaN come last
        for (const Head& head : heads)
            for (int c = 0; c < head.n; c += kLanes) top = larger(top, load<Ints>(head.value_scales + c));
        const int32_t most = largest(top);
        const float step = load<float>(&most) / 16383, per_step = 1 / step;
        float* to = value_steps;
        for (const Head& head : heads)
            for (int c = 0; c < head.n; c += kLanes, to += kLanes) store(to, load<Floats>(head.value_scales + c) * per_step);
        const bool is_last = part + 1 == n_rows * n_heads;
        for (int i = 0, r; i < m; i += r) {
            // The next head comes from memory while this one is computed.
            for (int p = 0; p < n_pieces && !is_last; p++) {
                const uint8_t* next = heads[p].keys + pieces[p].capacity * bytes_per_position(d_head);
                const long n_keys = (long)pieces[p].n * d_head, n_values = (long)pieces[p].n * round_up(d_head, kHeadStep);
                prefetch(next, n_keys, i, m);
                prefetch(next + ((uint8_t*)heads[p].values - heads[p].keys), n_values, i, m);
            }
            const int in_block = block - (n_before + i) % block, left = in_block < m - i ? in_block : m - i;
            last.n = n_last + i + left;
            const int n_tiles = (left + kRows - 1) / kRows;
            r = (left + n_tiles - 1) / n_tiles;
            attend_rows(q + i * 3 * d, 3 * d, r, heads.data(), n_pieces, width, value_steps, step, memory,
                        out + ((long)row * m + i) * d + h * d_head, d);
        }
    });
}

}  // namespace

extern "C" {

// qkv [n_rows][m][3 * n_heads * d_head] -> out [n_rows][m][n_heads * d_head]: softmax(q k / sqrt(d_head)) v over the
// positions of all pieces of a layer. First the new keys and values are written behind the positions of the last piece. The caller counts
// them in its n for later calls. Positions are seen by whole blocks: one sees all others up to the end of its own block.
void attend(const float* qkv, int n_rows, int m, int n_heads, int d_head, int layer, int block, const Piece* pieces,
            int n_pieces, float* out) {
    attend_heads(qkv, n_rows, m, n_heads, d_head, (long)layer * n_rows * n_heads, block, pieces, n_pieces, out);
}

struct TransformerLayer {
    const Map *qkv, *out, *ff_1, *ff_2;  // qkv and ff_1 begin with their norm
};

}  // extern "C"

namespace {

// `transform` for the rows from `first_row` on, n_rows of all_rows. `x`: the first of them
void transform_rows(const TransformerLayer* layers, int n_layers, int first, float* x, int first_row, int n_rows,
                    int all_rows, int m, int n_heads, int d_head, int block, const Piece* pieces, int n_pieces) {
    const int d = layers->out->n, width = n_heads * d_head, d_ff = layers->ff_2->k;
    const long n = (long)n_rows * m;
    static thread_local std::vector<float> memory;
    memory.resize(n * (4 * width + d_ff));
    float *qkv = memory.data(), *attended = qkv + n * 3 * width, *wide = attended + n * width;
    for (int l = 0; l < n_layers; l++) {
        const TransformerLayer& layer = layers[l];
        linear(layer.qkv, x, d, 0, n, 1, qkv, 3 * width, 0, false);
        const long first_head = ((long)(first + l) * all_rows + first_row) * n_heads;
        attend_heads(qkv, n_rows, m, n_heads, d_head, first_head, block, pieces, n_pieces, attended);
        linear(layer.out, attended, width, 0, n, 1, x, d, 0, true);
        linear(layer.ff_1, x, d, 0, n, 1, wide, d_ff, 0, false);
        linear(layer.ff_2, wide, d_ff, 0, n, 1, x, d, 0, true);
    }
}

}  // namespace

extern "C" {

// x [n_rows][m][D] through layers `first` and those after it, in place: x += attention, x += feed-forward maps. See `attend`.
void transform(const TransformerLayer* layers, int n_layers, int first, float* x, int n_rows, int m, int n_heads, int d_head,
               int block, const Piece* pieces, int n_pieces) {
    const auto run = [&](int row, int n) {
        float* from = x + (long)row * m * layers->out->n;
        transform_rows(layers, n_layers, first, from, row, n, n_rows, m, n_heads, d_head, block, pieces, n_pieces);
    };
    // As in `resnet`. A thread reads all weights, those of a layer at about the same time as the other one.
    if (fills_helpers(n_rows)) share(n_rows, [&](int row) { run(row, 1); });
    else run(0, n_rows);
}

// ------------------------------------------------------------------------------- a step of a Qwen2 language model

struct DecoderLayer {
    const Map *qkv, *out, *gate_up, *down;  // qkv and gate_up begin with their norm
    const float* qkv_bias;
};

struct Slots {  // keys and values [n_layers][2][n_slots][n_kv][max_len][d], and what their heads are rotated by
    float* data;
    const float *cos, *sin;  // [max_len][d]; sin of the first half of a head is negative
    int n_slots, n_kv, max_len, d;
};

}  // extern "C"

namespace {

inline Floats silu(Floats x) {
    const Floats power = x * -kLog2E;
    return x / (1.0f + exp2(power > 127.0f ? splat(127.0f) : power));  // a NaN stays
}

// x [d]: the first half of a head turns with the second. d is a multiple of 2.
void rotate(float* x, const float* cos, const float* sin, int d) {
    for (int i = 0; i < d / 2; i++) {
        const float a = x[i], b = x[i + d / 2];
        x[i] = a * cos[i] + b * sin[i];
        x[i + d / 2] = b * cos[i + d / 2] + a * sin[i + d / 2];
    }
}

inline float dot_product(const float* a, const float* b, int d) {
    Floats total = {};
    int i = 0;
    for (; i + kLanes <= d; i += kLanes) total += load<Floats>(a + i) * load<Floats>(b + i);
    float rest = 0;
    for (; i < d; i++) rest += a[i] * b[i];
    return sum(total) + rest;
}

// One query [d] over keys and values [n][d] -> out [d]. `weights` [n] is scratch.
void attend_one(const float* q, const float* keys, const float* values, int n, int d, float* weights, float* out) {
    const float scale = kLog2E / std::sqrt((float)d);
    float most = -INFINITY, total = 0;
    for (int i = 0; i < n; i++) {
        weights[i] = dot_product(q, keys + (long)i * d, d) * scale;
        most = weights[i] > most ? weights[i] : most;
    }
    int i = 0;
    Floats totals = {};
    for (; i + kLanes <= n; i += kLanes) {
        const Floats weight = exp2(load<Floats>(weights + i) - most);
        totals += weight;
        store(weights + i, weight);
    }
    for (; i < n; i++) total += weights[i] = exp2(splat(weights[i] - most))[0];
    const float factor = 1 / (total + sum(totals));
    for (int c = 0; c < d; c += kPanel) {
        Floats sums[kVectors] = {};
        const int n_vectors = d - c < kPanel ? (d - c) / kLanes : kVectors;
        if (n_vectors == kVectors)
            for (i = 0; i < n; i++)
                for (int v = 0; v < kVectors; v++) sums[v] += weights[i] * load<Floats>(values + (long)i * d + c + v * kLanes);
        else
            for (i = 0; i < n; i++)
                for (int v = 0; v < n_vectors; v++) sums[v] += weights[i] * load<Floats>(values + (long)i * d + c + v * kLanes);
        for (int v = 0; v < n_vectors; v++) store(out + c + v * kLanes, sums[v] * factor);
        for (int l = c + n_vectors * kLanes; l < d && l < c + kPanel; l++) {
            float one = 0;
            for (i = 0; i < n; i++) one += weights[i] * values[(long)i * d + l];
            out[l] = one * factor;
        }
    }
}

}  // namespace

extern "C" {

// x [n_rows][D] through all layers, in place. Row i becomes position starts[i] of slot slots[i]. A row sees the positions
// of its slot up to its own, so the rows may be one of each slot, or a prompt of one.
void decode(const DecoderLayer* layers, int n_layers, const Slots* cache, const int* slots, const int* starts, int n_rows,
            float* x) {
    const int d = cache->d, n_kv = cache->n_kv, width = layers->out->k, d_model = layers->out->n;
    const int n_heads = width / d, n_qkv = layers->qkv->n, d_ff = layers->down->k;
    static thread_local std::vector<float> memory;
    memory.resize((size_t)n_rows * (n_qkv + width + 3 * (size_t)d_ff));
    float *qkv = memory.data(), *attended = qkv + (long)n_rows * n_qkv, *gates = attended + (long)n_rows * width;
    float* mixed = gates + (long)n_rows * 2 * d_ff;
    const int n_queries = n_heads / n_kv, n_parts = n_rows < kShared ? 1 : kParts;
    const int n_together = n_rows < kShared ? 1 : n_heads;  // heads of a row that a part computes
    const long head = (long)cache->max_len * d, kind = cache->n_slots * n_kv * head;
    for (int l = 0; l < n_layers; l++) {
        const DecoderLayer& layer = layers[l];
        linear(layer.qkv, x, d_model, 0, n_rows, 1, qkv, n_qkv, 0, false);
        for (int i = 0; i < n_rows; i++) {
            float *row = qkv + (long)i * n_qkv, *k = row + width, *v = k + n_kv * d;
            for (int c = 0; c < n_qkv; c++) row[c] += layer.qkv_bias[c];
            const float *cos = cache->cos + (long)starts[i] * d, *sin = cache->sin + (long)starts[i] * d;
            for (int h = 0; h < n_heads + n_kv; h++) rotate(row + h * d, cos, sin, d);
            for (int h = 0; h < n_kv; h++) {
                float* keys = cache->data + 2 * l * kind + ((long)slots[i] * n_kv + h) * head + (long)starts[i] * d;
                memcpy(keys, k + h * d, d * sizeof(float));
                memcpy(keys + kind, v + h * d, d * sizeof(float));
            }
        }
        share(n_rows * n_heads / n_together, [&](int part) {
            float* weights = (float*)scratch(cache->max_len * sizeof(float));
            for (int at = part * n_together; at < (part + 1) * n_together; at++) {
                const int i = at / n_heads, q = at % n_heads;
                const float* keys = cache->data + 2 * l * kind + ((long)slots[i] * n_kv + q / n_queries) * head;
                attend_one(qkv + (long)i * n_qkv + q * d, keys, keys + kind, starts[i] + 1, d, weights,
                           attended + (long)i * width + q * d);
            }
        });
        linear(layer.out, attended, width, 0, n_rows, 1, x, d_model, 0, true);
        linear(layer.gate_up, x, d_model, 0, n_rows, 1, gates, 2 * d_ff, 0, false);
        share(n_parts, [&](int part) {
            for (int i = (long)n_rows * part / n_parts; i < (long)n_rows * (part + 1) / n_parts; i++) {
                const float *gate = gates + (long)i * 2 * d_ff, *up = gate + d_ff;
                float* to = mixed + (long)i * d_ff;
                int c = 0;
                for (; c + kLanes <= d_ff; c += kLanes) store(to + c, silu(load<Floats>(gate + c)) * load<Floats>(up + c));
                for (; c < d_ff; c++) to[c] = silu(splat(gate[c]))[0] * up[c];
            }
        });
        linear(layer.down, mixed, d_ff, 0, n_rows, 1, x, d_model, 0, true);
    }
}

}  // extern "C"

#include "convolutions.h"
#include "vocoder_layers.h"
#include "generator_layers.h"
