// The convolutions of the vocoder's residual blocks in bfloat16, each with the snake before it and the sum behind it.
// `model/vocoder/bfloat16_layers.py` calls them. Part of kernels.cpp. Other layers of the vocoder are PyTorch's.

// The instruction is not a level of its own (`library.py`): beside VNNI, only these functions use it.
#if defined(__AVX512VNNI__) && (defined(__clang__) || __GNUC__ >= 10)
#define WITH_BFLOAT16 1
#define IN_BFLOAT16 __attribute__((target("avx512bf16")))
constexpr bool kHasBfloat16 = true, kHasConvolve = true;  // kHasConvolve: without tiles
#elif WITH_TILES
#define IN_BFLOAT16
constexpr bool kHasBfloat16 = true, kHasConvolve = false;
#else
constexpr bool kHasBfloat16 = false, kHasConvolve = false;
#endif

extern "C" {

struct SnakeConv {  // conv(x + sin(alpha x)^2 inverse), of as many channels as outputs
    const uint16_t* weights;  // bfloat16 [d / kPanel][kernel][d / 2][kPanel][2]: two weights of an output lie side by side
    const float *bias, *alpha, *inverse;  // [d]
    int d, kernel, dilation;
};

// Outputs of a panel of weights, of which `d` is to be a multiple; 0 if this build cannot multiply in bfloat16
int bfloat16_outputs() { return kHasBfloat16 ? kPanel : 0; }

}  // extern "C"

#if WITH_BFLOAT16 || WITH_TILES

namespace {

struct Bfloat16Conv {
    const uint16_t* weights;  // bfloat16 [d_out / kPanel][kernel][d_in / 2][kPanel][2]
    const float* bias;        // [d_out]
    int d_in, d_out, kernel, dilation;
};

// The square of sin(pi turns): a polynomial in the distance to a zero, absolute error 7e-7
inline Floats squared_sine(Floats turns) {
    const Floats r = turns - rounded(turns), s = r * r;
    Floats p = splat(10.581298f);
    p = p * s - 29.4262731f;
    p = p * s + 42.643426f;
    p = p * s - 32.4651395f;
    p = p * s + 9.86952481f;
    return p * s;
}

IN_BFLOAT16 inline void store_bfloat16(uint16_t* to, Floats x) {
#if WITH_BFLOAT16
    store(to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    // To the nearest one, halves to even. A NaN stays.
    const Ints bits = (Ints)x, rounded_bits = bits + 0x7fff + (bits >> 16 & 1);
    store(to, __builtin_convertvector((x == x ? rounded_bits : bits) >> 16, Shorts));
#endif
}

// x [d] -> bfloat16 [d]
IN_BFLOAT16 void snake(const SnakeConv& of, const float* x, uint16_t* to) {
    for (int c = 0; c < of.d; c += kLanes) {
        const Floats value = load<Floats>(x + c), turns = value * load<Floats>(of.alpha + c) * 0.31830988618379067f;
        store_bfloat16(to + c, value + squared_sine(turns) * load<Floats>(of.inverse + c));
    }
}

#if WITH_BFLOAT16

// R columns of outputs of a panel. `rows`: the first tap of the first column; `add`: null, or what is added to y
template <int R>
IN_BFLOAT16 void convolve(const Bfloat16Conv& of, const uint16_t* rows, int panel, const float* add, float* y) {
    Floats sums[R][kVectors];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < kVectors; v++) sums[r][v] = load<Floats>(of.bias + panel * kPanel + v * kLanes);
    const uint16_t* w = of.weights + (long)panel * of.kernel * of.d_in * kPanel;
    for (int tap = 0; tap < of.kernel; tap++, rows += (long)of.dilation * of.d_in)
        for (int k = 0; k < of.d_in; k += 8)
#pragma GCC unroll 4
            for (int u = k; u < k + 8; u += 2, w += 2 * kPanel) {
                __m512bh column[kVectors];
                for (int v = 0; v < kVectors; v++) column[v] = load<__m512bh>(w + 2 * kLanes * v);
                for (int r = 0; r < R; r++) {
                    const __m512bh pair = (__m512bh)_mm512_set1_epi32(load<int32_t>(rows + (long)r * of.d_in + u));
                    for (int v = 0; v < kVectors; v++)
                        sums[r][v] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][v], column[v], pair);
                }
            }
    // As in `tile`.
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; v++) {
            const long at = (long)r * of.d_out + panel * kPanel + v * kLanes;
            store(y + at, add ? load<Floats>(add + at) + sums[r][v] : sums[r][v]);
        }
}

void convolve(int n_columns, const Bfloat16Conv& of, const uint16_t* rows, int panel, const float* add, float* y) {
    switch (n_columns) {
        case 1: return convolve<1>(of, rows, panel, add, y);
        case 2: return convolve<2>(of, rows, panel, add, y);
        case 3: return convolve<3>(of, rows, panel, add, y);
        case 4: return convolve<4>(of, rows, panel, add, y);
        case 5: return convolve<5>(of, rows, panel, add, y);
        default: return convolve<6>(of, rows, panel, add, y);
    }
}

#endif

#if WITH_TILES

// Columns begin to end of outputs; `rows` and `add` as for `convolve`, of column 0
void convolve_in_tiles(const Bfloat16Conv& of, const uint16_t* rows, long begin, long end, const float* add, float* y) {
    const TilesReleased at_end;
    constexpr long kColumns = 16 * kMostRows;  // whose rows stay in the second cache while all outputs are made of them
    for (long first = begin; first < end; first += kColumns) {
        const long last = std::min(end, first + kColumns);
        for (int panel = 0; panel < of.d_out / kPanel; panel++)
            for (long i = first; i < last; i += kMostRows) {
                const Taps taps{rows + i * of.d_in, 2L * of.d_in, 2 * of.d_in, of.kernel, 2L * of.dilation * of.d_in};
                const void* weights = of.weights + (long)panel * of.kernel * of.d_in * kPanel;
                products_of_tiles<Floats, kVectors>(std::min<long>(last - i, kMostRows), taps, weights, [&](int j, int v, Floats z) {
                    const long c = panel * kPanel + v * kLanes, at = (i + j) * of.d_out + c;
                    z += load<Floats>(of.bias + c);
                    store(y + at, add ? load<Floats>(add + at) + z : z);
                });
            }
    }
}

#endif

}  // namespace

extern "C" {

// x [n][d], `left` zeros before it and `right` zeros after it -> y [m][d], m = n + left + right - (kernel - 1) dilation.
// `add` [m][d], or null, is added. Call it only if `bfloat16_outputs` divides d
// and the processor has the instruction.
void snake_conv(const SnakeConv* of, const float* x, int n, int left, int right, const float* add, float* y) {
    const int d = of->d, m = n + left + right - (of->kernel - 1) * of->dilation;
    if (m < 1) return;
    uint16_t* rows = (uint16_t*)scratch((size_t)(n + left + right + 1) * d * sizeof(uint16_t));  // tiles may read one more
    memset(rows, 0, (size_t)left * d * sizeof(uint16_t));
    memset(rows + (long)(left + n) * d, 0, (size_t)right * d * sizeof(uint16_t));
    share(kParts, [&](int part) {
        for (long i = (long)n * part / kParts; i < (long)n * (part + 1) / kParts; i++) snake(*of, x + i * d, rows + (left + i) * d);
    });
    share(kParts, [&](int part) {
        const long begin = (long)m * part / kParts, end = (long)m * (part + 1) / kParts;
        const Bfloat16Conv conv{of->weights, of->bias, d, d, of->kernel, of->dilation};
#if WITH_TILES
        convolve_in_tiles(conv, rows, begin, end, add, y);
#else
        for (int panel = 0; panel < d / kPanel; panel++)
            for (long i = begin; i < end; i += kRows)
                convolve(end - i < kRows ? end - i : kRows, conv, rows + i * d, panel, add ? add + i * d : nullptr, y + i * d);
#endif
    });
}

}  // extern "C"

#endif
