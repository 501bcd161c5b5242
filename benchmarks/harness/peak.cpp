// How fast the kernels' own instruction multiplies when nothing is read from memory. benchmarks/floors.py builds it.

#include "../../telephony_tts/engines/kernels/kernels.cpp"

extern "C" {

// As many sums as the kernels' tile has, in registers: `n` times one `dot` for each. The sums begin with different values
// of `out` [64], or the compiler would compute one for all. Returns the products of a call.
long products_in_registers(long n, int32_t* out) {
    constexpr int kSums = kRows * kVectors;
    Ints sums[kSums], w = load<Ints>(out);
    const int32_t a = out[0];
#pragma GCC unroll 32
    for (int j = 0; j < kSums; j++) sums[j] = load<Ints>(out + j);
    for (long i = 0; i < n; i++) {
#pragma GCC unroll 32  // otherwise the sums are in memory
        for (int j = 0; j < kSums; j++) sums[j] = dot(sums[j], w, a);
    }
#pragma GCC unroll 32
    for (int j = 0; j < kSums; j++) w += sums[j];
    store(out, w);
    return n * kSums * kLanes * 4;
}

}  // extern "C"
