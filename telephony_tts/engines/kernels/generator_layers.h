// The convolutions of kokoro's generator in bfloat16, each with the adaptive norm and the snake, or the leaky ReLU, before
// it and the sum behind it. `engines/kokoro/generator.py` calls them. Part of kernels.cpp.

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

#if WITH_BFLOAT16 || WITH_TILES

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
        store_bfloat16(to + c, value * of.gain);
    }
}

}  // namespace

extern "C" {

// x [n][d_in], `left` zeros before it and `right` zeros after it -> y [m][d_out], m = n + left + right - (kernel - 1) dilation.
// `add` [m][d_out], or null, is added; it may be y. d_in is a multiple of 32, d_out of `bfloat16_outputs`. `with_tiles`: by
// tile registers, at the level `amx`.
void generator_conv(const GeneratorConv* of, const Activation* before, const float* x, int n, int left, int right,
                    const float* add, float* y, int with_tiles) {
    const int d = of->d_in, m = n + left + right - (of->kernel - 1) * of->dilation;
    if (m < 1) return;
    const Bfloat16Conv conv{of->weights, of->bias, d, of->d_out, of->kernel, of->dilation};
    const size_t n_rows = (size_t)n + left + right + 1;  // tiles may read one more
    char* memory = scratch(n_rows * d * sizeof(uint16_t) + 64);
    uint16_t* rows = (uint16_t*)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    memset(rows, 0, (size_t)left * d * sizeof(uint16_t));
    memset(rows + (long)(left + n) * d, 0, (size_t)(right + 1) * d * sizeof(uint16_t));
    for (long i = 0; i < n; i++) activate(*before, x + i * d, d, rows + (left + i) * d);
#if WITH_TILES
    if (with_tiles || !kHasConvolve) return convolve_in_tiles(conv, rows, 0, m, add, y);
#endif
#if WITH_BFLOAT16
    for (int panel = 0; panel < of->d_out / kPanel; panel++)
        for (long i = 0; i < m; i += kRows)
            convolve(m - i < kRows ? m - i : kRows, conv, rows + i * d, panel, add ? add + i * of->d_out : nullptr, y + i * of->d_out);
#endif
}

}  // extern "C"

#endif
