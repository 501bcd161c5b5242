// The convolutions of kokoro's generator in bfloat16, each with the adaptive norm and the snake, or the leaky ReLU, before
// it and the sum behind it. `engines/kokoro_generator.py` calls them. Part of kernels.cpp.

#if WITH_BFLOAT16 && defined(__AMX_BF16__)
#define WITH_AMX 1
#endif

extern "C" {

struct GeneratorConv {
    const uint16_t* weights;  // bfloat16 [d_out / kPanel][kernel][d_in / 2][kPanel][2]
    const float* bias;        // [d_out]
    int d_in, d_out, kernel, dilation;
};

// What is done to x before a convolution. With `alpha`: v = scale x + shift, then v + sin(alpha v)^2 inverse.
// Without: x, times `slope` if it is negative. Then the result is multiplied by `gain`.
struct Activation {
    const float *scale, *shift, *alpha, *inverse;  // [d_in]
    float slope, gain;
};

// x [n][d], weights [n] -> sums [2][d]: of weight * x, and of weight * x^2
void channel_sums(const float* x, const float* weights, int n, int d, double* sums) {
    constexpr int kBlock = 64;  // rows that are summed in float32
    std::fill(sums, sums + 2 * d, 0.0);
    std::vector<float> block(2 * d);
    for (int first = 0; first < n; first += kBlock) {
        std::fill(block.begin(), block.end(), 0.0f);
        for (int i = first; i < n && i < first + kBlock; i++) {
            const float* row = x + (long)i * d;
            const float weight = weights[i];
            for (int c = 0; c < d; c++) {
                const float part = weight * row[c];
                block[c] += part;
                block[d + c] += part * row[c];
            }
        }
        for (int c = 0; c < 2 * d; c++) sums[c] += block[c];
    }
}

}  // extern "C"

#if WITH_BFLOAT16

namespace {

// x [d] -> bfloat16 [d]
IN_BFLOAT16 void activate(const Activation& of, const float* x, int d, uint16_t* to) {
    for (int c = 0; c < d; c += kLanes) {
        Floats value = load<Floats>(x + c);
        if (of.alpha) {
            value = value * load<Floats>(of.scale + c) + load<Floats>(of.shift + c);
            const Floats turns = value * load<Floats>(of.alpha + c) * 0.31830988618379067f;
            value += squared_sine(turns) * load<Floats>(of.inverse + c);
        } else {
            value = value < 0.0f ? value * of.slope : value;
        }
        store(to + c, (__m256i)_mm512_cvtneps_pbh((__m512)(value * of.gain)));
    }
}

#if WITH_AMX

// 32 columns of 32 outputs, the first of which is `output`. `rows` has as many columns beyond the last one as are missing;
// `n_columns` are stored.
IN_BFLOAT16 void convolve_tiles(const Bfloat16Conv& of, const uint16_t* rows, int output, int n_columns, const float* add, float* y) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const uint16_t* w = of.weights + (long)(output / kPanel) * of.kernel * of.d_in * kPanel + output % kPanel * 2;
    for (int tap = 0; tap < of.kernel; tap++, rows += (long)of.dilation * of.d_in)
        for (int k = 0; k < of.d_in; k += 32, w += 32 * kPanel) {
            _tile_loadd(4, rows + k, of.d_in * 2);
            _tile_loadd(6, w, kPanel * 4);
            _tile_loadd(7, w + 32, kPanel * 4);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, rows + k + 16 * of.d_in, of.d_in * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    alignas(64) float sums[32][32];
    _tile_stored(0, sums[0], 128);
    _tile_stored(1, sums[0] + 16, 128);
    _tile_stored(2, sums[16], 128);
    _tile_stored(3, sums[16] + 16, 128);
    for (int r = 0; r < n_columns; r++)
        for (int c = 0; c < 32; c += kLanes) {
            const long at = (long)r * of.d_out + output + c;
            const Floats sum = load<Floats>(sums[r] + c) + load<Floats>(of.bias + output + c);
            store(y + at, add ? load<Floats>(add + at) + sum : sum);
        }
}

IN_BFLOAT16 void convolve_amx(const Bfloat16Conv& of, const uint16_t* rows, long begin, long end, const float* add, float* y) {
    const TilesReleased at_end;
    use_shapes(kTileRows, kTileBytes);
    constexpr long kColumns = 32 * 16;  // whose rows stay in the second cache while all outputs are made of them
    for (long first = begin; first < end; first += kColumns)
        for (int output = 0; output < of.d_out; output += 32)
            for (long i = first; i < end && i < first + kColumns; i += 32)
                convolve_tiles(of, rows + i * of.d_in, output, end - i < 32 ? end - i : 32, add ? add + i * of.d_out : nullptr,
                               y + i * of.d_out);
}

#endif

}  // namespace

extern "C" {

// x [n][d_in], `left` zeros before it and `right` zeros after it -> y [m][d_out], m = n + left + right - (kernel - 1) dilation.
// `add` [m][d_out], or null, is added; it may be y. d_in is a multiple of 32, d_out of `bfloat16_outputs`. `with_amx`: by
// tile registers, at the level `amx`.
void generator_conv(const GeneratorConv* of, const Activation* before, const float* x, int n, int left, int right,
                    const float* add, float* y, int with_amx) {
    const int d = of->d_in, m = n + left + right - (of->kernel - 1) * of->dilation;
    if (m < 1) return;
    const Bfloat16Conv conv{of->weights, of->bias, d, of->d_out, of->kernel, of->dilation};
    const size_t n_rows = (size_t)n + left + right + 32;  // tiles of 32 columns read beyond the last one
    char* memory = scratch(n_rows * d * sizeof(uint16_t) + 64);
    uint16_t* rows = (uint16_t*)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    memset(rows, 0, (size_t)left * d * sizeof(uint16_t));
    memset(rows + (long)(left + n) * d, 0, (size_t)(right + 32) * d * sizeof(uint16_t));
    for (long i = 0; i < n; i++) activate(*before, x + i * d, d, rows + (left + i) * d);
#if WITH_AMX
    if (with_amx) return convolve_amx(conv, rows, 0, m, add, y);
#endif
    for (int panel = 0; panel < of->d_out / kPanel; panel++)
        for (long i = 0; i < m; i += kRows)
            convolve(m - i < kRows ? m - i : kRows, conv, rows + i * d, panel, add ? add + i * of->d_out : nullptr, y + i * of->d_out);
}

}  // extern "C"

#endif
