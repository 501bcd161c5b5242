// Convolutions in float32 and float64. `model/kernel_conv.py` calls them. Part of kernels.cpp.

extern "C" {

struct Conv {
    const void* weights;  // [d_out / panel][kernel][d_in][panel]
    const void* bias;     // [d_out]
    int d_in, d_out, kernel, stride;
};

// Outputs of a panel of weights, of which `d_out` is to be a multiple
int float_outputs() { return kPanel; }
int double_outputs() { return kPanel / 2; }

}  // extern "C"

namespace {

template <class T> struct Panel {  // kVectors vectors of numbers
    typedef T Vector __attribute__((vector_size(4 * kLanes)));
    static constexpr int lanes = 4 * kLanes / (int)sizeof(T), outputs = lanes * kVectors;
};

// R columns of outputs of a panel. `rows`: the first tap of the first column. An output is the sum of its products in one
// order, whatever the other columns are.
template <class T, int R>
void convolve_plain(const Conv& of, const T* rows, int panel, T* y) {
    using P = Panel<T>;
    using Vector = typename P::Vector;
    Vector sums[R][kVectors];
    const T* bias = (const T*)of.bias + (long)panel * P::outputs;
    for (int r = 0; r < R; r++)
        for (int v = 0; v < kVectors; v++) sums[r][v] = load<Vector>(bias + v * P::lanes);
    const int n = of.kernel * of.d_in;  // taps lie side by side
    const long step = (long)of.stride * of.d_in;
    const T* w = (const T*)of.weights + (long)panel * n * P::outputs;
    for (int k = 0; k < n; k++, w += P::outputs) {
        Vector column[kVectors];
        for (int v = 0; v < kVectors; v++) column[v] = load<Vector>(w + v * P::lanes);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < kVectors; v++) sums[r][v] += rows[r * step + k] * column[v];
    }
    // As in `tile`.
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; v++) store(y + (long)r * of.d_out + panel * P::outputs + v * P::lanes, sums[r][v]);
}

// x [n][d_in], `left` zeros before it and `right` zeros after it -> y [m][d_out]
template <class T> void convolve_all(const Conv& of, const T* x, int n, int left, int right, T* y) {
    if (n + left + right < of.kernel) return;
    const int m = (n + left + right - of.kernel) / of.stride + 1, d = of.d_in;
    const T* rows = x;
    if (left || right) {
        T* padded = (T*)scratch((size_t)(n + left + right) * d * sizeof(T));
        std::fill(padded, padded + (long)left * d, T(0));
        memcpy(padded + (long)left * d, x, (size_t)n * d * sizeof(T));
        std::fill(padded + (long)(left + n) * d, padded + (long)(left + n + right) * d, T(0));
        rows = padded;
    }
    // Few panels are cut into ranges of columns. Otherwise each part reads the weights of its own panel only.
    const int n_panels = of.d_out / Panel<T>::outputs, n_ranges = n_panels < kParts ? kParts / n_panels : 1;
    share(n_panels * n_ranges, [&](int part) {
        const int panel = part / n_ranges, range = part % n_ranges;
        const long begin = (long)m * range / n_ranges, end = (long)m * (range + 1) / n_ranges;
        for (long i = begin, r; i < end; i += r) {
            const T* from = rows + i * of.stride * d;
            T* to = y + i * of.d_out;
            r = std::min<long>(end - i, kRows);
            switch (r) {
                case 1: convolve_plain<T, 1>(of, from, panel, to); break;
                case 2: convolve_plain<T, 2>(of, from, panel, to); break;
                case 3: convolve_plain<T, 3>(of, from, panel, to); break;
                case 4: convolve_plain<T, 4>(of, from, panel, to); break;
                case 5: convolve_plain<T, kRows < 5 ? kRows : 5>(of, from, panel, to); break;
                default: convolve_plain<T, kRows>(of, from, panel, to);
            }
        }
    });
}

}  // namespace

extern "C" {

void float_conv(const Conv* of, const float* x, int n, int left, int right, float* y) { convolve_all(*of, x, n, left, right, y); }
void double_conv(const Conv* of, const double* x, int n, int left, int right, double* y) { convolve_all(*of, x, n, left, right, y); }

}  // extern "C"
