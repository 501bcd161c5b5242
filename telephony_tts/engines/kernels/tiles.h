// Tile registers: eight matrices of up to 16 rows of 64 bytes, and sums of their products (Intel's AMX). PLAIN_TILES gives the
// same in plain C++, so that whatever is made of them is tested on any machine. Part of kernels.cpp.

#if defined(__AMX_INT8__) || defined(PLAIN_TILES)
#define WITH_TILES 1

namespace {

constexpr int kTiles = 8, kTileRows = 16, kTileBytes = 64;  // kTileBytes: of a row

struct TileShapes {  // what the processor reads
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t row_bytes[kTiles] = {}, unused_bytes[8] = {};
    uint8_t n_rows[kTiles] = {}, unused_rows[8] = {};
};

#if defined(PLAIN_TILES)

struct Bfloat16 {
    uint16_t bits;
    operator float() const { const uint32_t wide = (uint32_t)bits << 16; return load<float>(&wide); }
};

thread_local TileShapes tile_shapes;
thread_local char tile_rows[kTiles][kTileRows][kTileBytes];

inline void set_shapes(const TileShapes& shapes) { tile_shapes = shapes; }
inline void release_tiles() {}
template <int kTile> void clear_tile() { memset(tile_rows[kTile], 0, sizeof tile_rows[kTile]); }
template <int kTile> void load_tile(const void* from, long stride) {
    for (int i = 0; i < tile_shapes.n_rows[kTile]; i++)
        memcpy(tile_rows[kTile][i], (const char*)from + i * stride, tile_shapes.row_bytes[kTile]);
}
template <int kTile> void store_tile(void* to, long stride) {
    for (int i = 0; i < tile_shapes.n_rows[kTile]; i++)
        memcpy((char*)to + i * stride, tile_rows[kTile][i], tile_shapes.row_bytes[kTile]);
}

template <int kSums, int kA, int kB, class Sum, class A, class B> void add_plain() {
    constexpr int kGroup = 4 / sizeof(A);
    for (int i = 0; i < tile_shapes.n_rows[kSums]; i++)
        for (int j = 0; j < tile_shapes.row_bytes[kSums] / 4; j++) {
            Sum& sum = ((Sum*)tile_rows[kSums][i])[j];
            for (int k = 0; k < tile_shapes.row_bytes[kA] / (int)sizeof(A); k++)
                sum += (Sum)((const A*)tile_rows[kA][i])[k] * (Sum)((const B*)tile_rows[kB][k / kGroup])[j * kGroup + k % kGroup];
        }
}
template <int kSums, int kA, int kB> void add_products(Ints) { add_plain<kSums, kA, kB, int32_t, int8_t, uint8_t>(); }
template <int kSums, int kA, int kB> void add_products(Floats) { add_plain<kSums, kA, kB, float, Bfloat16, Bfloat16>(); }

#else

inline void set_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void release_tiles() { asm volatile("tilerelease"); }
template <int kTile> inline void clear_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(kTile)); }
template <int kTile> inline void load_tile(const void* from, long stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
}
template <int kTile> inline void store_tile(void* to, long stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
}
// sums [i][j] + products of signed bytes a [i][k] and unsigned bytes b [k / 4][j][4]
template <int kSums, int kA, int kB> inline void add_products(Ints) {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}
// The same in bfloat16, b [k / 2][j][2]
template <int kSums, int kA, int kB> inline void add_products(Floats) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}

#endif

thread_local int shapes_in_use = 0;

// Tiles 0 to 3 become sums [n_rows][kLanes], 4 and 5 n_rows of k_bytes, 6 and 7 what those are multiplied by.
inline void use_shapes(int n_rows, int k_bytes) {
    const int asked = n_rows << 8 | k_bytes;
    if (shapes_in_use == asked) return;
    TileShapes shapes;
    for (int i = 0; i < kTiles; i++) {
        shapes.n_rows[i] = i < 6 ? n_rows : k_bytes / 4;
        shapes.row_bytes[i] = i < 4 || i >= 6 ? 4 * kLanes : k_bytes;
    }
    set_shapes(shapes);
    shapes_in_use = asked;
}

struct TilesReleased {  // at its end: PyTorch uses them, too, in shapes of its own
    ~TilesReleased() {
        if (shapes_in_use) release_tiles();
        shapes_in_use = 0;
    }
};

struct Taps {  // what a row of sums is made of: at `a` and every `step` bytes after it, n_bytes, a multiple of 4
    const void* a;
    long row;  // bytes from one row of sums to the next
    int n_bytes, n;
    long step;
};

// n_rows up to 2 * kTileRows of a times a panel of NV vectors of outputs, [n][n_bytes / 4][NV][kLanes][4 bytes]:
// each(row, vector, sums), which are Ints of bytes or Floats of bfloat16. If the rows are odd, one more is read.
template <class Sums, int NV, class Each>
inline void products_of_tiles(int n_rows, const Taps& taps, const void* panel, const Each& each) {
    constexpr int kOutputs = NV * kLanes, kRowBytes = 4 * kOutputs;
    static_assert(NV % 2 == 0, "two vectors at a time");
    alignas(64) int32_t sums[2 * kTileRows * kOutputs];
    const int half = (n_rows + 1) / 2, whole = taps.n_bytes / kTileBytes * kTileBytes;
    for (int begin = 0; begin < taps.n_bytes; begin = begin < whole ? whole : taps.n_bytes) {
        const int end = begin < whole ? whole : taps.n_bytes, k_bytes = begin < whole ? kTileBytes : end - begin;
        use_shapes(half, k_bytes);
        for (int v = 0; v < NV; v += 2) {
            int32_t *left = sums + v * kLanes, *right = left + kLanes, *below = left + half * kOutputs, *last = below + kLanes;
            if (begin == 0) {
                clear_tile<0>(), clear_tile<1>(), clear_tile<2>(), clear_tile<3>();
            } else {
                load_tile<0>(left, kRowBytes), load_tile<1>(below, kRowBytes);
                load_tile<2>(right, kRowBytes), load_tile<3>(last, kRowBytes);
            }
            for (int tap = 0; tap < taps.n; tap++)
                for (int k = begin; k < end; k += k_bytes) {
                    const char* a = (const char*)taps.a + tap * taps.step + k;
                    const char* w = (const char*)panel + ((long)tap * taps.n_bytes + k) * kOutputs + 4 * v * kLanes;
                    load_tile<6>(w, kRowBytes), load_tile<4>(a, taps.row);
                    add_products<0, 4, 6>(Sums{});
                    load_tile<5>(a + half * taps.row, taps.row);
                    add_products<1, 5, 6>(Sums{});
                    load_tile<7>(w + 4 * kLanes, kRowBytes);
                    add_products<2, 4, 7>(Sums{}), add_products<3, 5, 7>(Sums{});
                }
            store_tile<0>(left, kRowBytes), store_tile<1>(below, kRowBytes);
            store_tile<2>(right, kRowBytes), store_tile<3>(last, kRowBytes);
        }
    }
    for (int j = 0; j < n_rows; j++)
        for (int v = 0; v < NV; v++) each(j, v, load<Sums>(sums + j * kOutputs + v * kLanes));
}

}  // namespace

#else

namespace {

struct TilesReleased {};

}  // namespace

#endif
