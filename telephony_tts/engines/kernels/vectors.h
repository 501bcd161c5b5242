// Vectors of the widest kind that the build has, and the functions of them that both kernels' files use.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512VNNI__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef int16_t Shorts __attribute__((vector_size(2 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

template <class V, class P> inline V load(const P* p) { V v; memcpy(&v, p, sizeof v); return v; }
template <class V, class P> inline void store(P* p, V v) { memcpy(p, &v, sizeof v); }
inline Floats splat(float x) { return x - Floats{}; }
template <class V> inline V larger(V a, V b) { return a > b ? a : b; }
template <class V> inline V smaller(V a, V b) { return a < b ? a : b; }
inline Floats absolute(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }
inline Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }
#if defined(__AVX512VNNI__)
inline float largest(Floats v) { return _mm512_reduce_max_ps((__m512)v); }
inline int32_t largest(Ints v) { return _mm512_reduce_max_epi32((__m512i)v); }
inline float sum(Floats v) { return _mm512_reduce_add_ps((__m512)v); }
inline int32_t sum(Ints v) { return _mm512_reduce_add_epi32((__m512i)v); }
#else
template <class V> inline auto largest(V v) {
    auto most = v[0];
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

// 2^x for x <= 127; far below -126 it is nothing, or 2^-126. A polynomial for the part within 0..1, relative error 3e-6.
inline Floats exp2(Floats x) {
#if defined(__AVX512VNNI__)
    const Floats f = (Floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
    x = x < -126.0f ? splat(-126.0f) : x;  // a NaN stays
    const Floats whole = rounded(x - 0.5f), f = x - whole;
#endif
    Floats p = splat(1.35341682e-2f);
    p = p * f + 5.201146354e-2f;
    p = p * f + 2.414427523e-1f;
    p = p * f + 6.930038363e-1f;
    p = p * f + 1.000002593f;
#if defined(__AVX512VNNI__)
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)x);  // times 2^floor(x)
#else
    const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
    return p * load<Floats>(&power);
#endif
}

constexpr float kLog2E = 1.44269504088896341f;

// x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2)
inline Floats mish(Floats x) {
    const Floats power = exp2((x < 30.0f ? x : splat(30.0f)) * kLog2E), n = power * (power + 2.0f);
    return x * (n / (n + 2.0f));
}

}  // namespace
