// The forward pass of wide CIFAR ResNets in 8-bit integers: three kernels, one per stage.
//
// As cifar_resnet_int8.cu, but for what many channels ask for: what shortcuts carry is in device
// memory, where only the lanes that need it read and write it, and each warp computes 128 pixels of 32
// channels at once, with the weights of its next products under way.
//
// Follows integers.cu. Compile with WIDE, STAGE, CHANNELS, NEXT (the channels of the next stage) and
// WARPS; both numbers of channels are multiples of 32.

constexpr int SIZE = 64 >> STAGE, PARTS = 2, MT = 4, NT = 4;
constexpr int GROUP = NT * 8;  // channels of a warp
constexpr int THREADS = WARPS * 32;
constexpr int IMAGES = SIZE == 8 ? PARTS : 1;
constexpr int UNITS = SIZE * SIZE * IMAGES / (PARTS * MT * 16);  // of pixels

using M = Bytes<CHANNELS, SIZE>;

// One warp's pixels: in two images, or in the upper and the lower four rows of eight.
constexpr u32 PART = SIZE == 8 ? 2 * M::bytes : 4 * M::width * 16;
constexpr int KEPT_PART = (SIZE == 8 ? CHANNELS * 64 : 4 * SIZE * 16) / 4;

constexpr int STRIDE_OF_WEIGHTS = 9 * CHANNELS * CHANNELS / 16;
constexpr int STRIDE_OF_CONSTANTS = 3 * CHANNELS / 4;

DEVICE int tile_of(int unit) { return SIZE == 8 ? 0 : unit * PARTS * MT; }

// A 3x3 convolution that keeps the size, from the lane's own row of the first part.
DEVICE void convolve_parts(u32 (&sums)[PARTS][MT][NT][4], u32 row, const uint4 *own) {
    constexpr int depth = M::planes / 2, steps = 3 * depth, stride = 3 * (CHANNELS / 16) * 32;
    uint4 b[2][3][NT / 2];
    load_column<CHANNELS, NT>(b[0], own);
    ROLLED for (int step = 0; step < steps; step += 2) {
        UNROLL for (int half = 0; half < 2; half++) {
            const int now = step + half;
            if (now + 1 < steps) load_column<CHANNELS, NT>(b[1 - half], own + (now + 1) * stride);
            const u32 there = row + M::at(0, now / depth) + now % depth * 2 * M::plane;
            UNROLL for (int part = 0; part < PARTS && now < steps; part++) {
                multiply_column<M, MT, NT>(sums[part], there + part * PART, b[half]);
            }
        }
    }
}

DEVICE void start_parts(u32 (&sums)[PARTS][MT][NT][4], const uint4 *constants, int channel) {
    u32 from[NT / 2][4];
    load_own(from, constants, channel);
    UNROLL for (int part = 0; part < PARTS; part++) start<MT, NT>(sums[part], from);
}

// Sums into `inner`, or into `outer` and `kept`, to which they are added with `residual`.
DEVICE void finish_parts(const u32 (&sums)[PARTS][MT][NT][4], const uint4 *constants, u32 outer,
    u32 inner, uint2 *kept, int unit, int channel, bool second, bool residual) {
    Scales<NT / 2> scales;
    load_scales<CHANNELS>(scales, constants, channel);
    int y, x;
    place<SIZE>(tile_of(unit), lane_index() >> 2, y, x);
    UNROLL for (int part = 0; part < PARTS; part++) {
        if (second) {
            finish_outer<M>(sums[part], scales, outer + part * PART, kept + part * KEPT_PART, y, x,
                channel, residual);
        } else {
            finish_inner<M>(sums[part], scales, inner + part * PART, y, x, channel);
        }
    }
}

// The convolutions of blocks, of which the first begins a block or ends one (`second`).
DEVICE void convolve_blocks(u32 outer, u32 inner, uint2 *kept, bool second, int convolutions,
    const uint4 *weights, const uint4 *constants) {
    ROLLED for (int i = 0; i < convolutions; i++) {
        ROLLED for (int k = warp_index(); k < UNITS * (CHANNELS / GROUP); k += WARPS) {
            const int unit = k % UNITS, channel = k / UNITS * GROUP;
            u32 sums[PARTS][MT][NT][4];
            start_parts(sums, constants, channel);
            const u32 row = row_of<M, 1, SIZE>(second ? inner : outer, tile_of(unit));
            convolve_parts(sums, row, weights + channel / 16 * 32 + lane_index());
            finish_parts(sums, constants, outer, inner, kept, unit, channel, second, true);
        }
        second = !second;
        weights += STRIDE_OF_WEIGHTS;
        constants += STRIDE_OF_CONSTANTS;
        barrier();
    }
}

#if STAGE < 3

// The first convolutions of the next stage, the 3x3 one and that of the shortcut.
DEVICE void convolve_next(u32 outer, const uint4 *weights, const uint4 *constants, u32 *inner_out,
    u32 *outer_out) {
    constexpr int tiles = SIZE / 2 * SIZE / 2 / 16, own = tiles < 8 ? tiles : 8, units = tiles / own;
    inner_out += block_index() * (NEXT * SIZE / 2 * SIZE / 2 / 4);
    outer_out += block_index() * (NEXT * SIZE / 2 * SIZE / 2 / 2);
    ROLLED for (int k = warp_index(); k < units * (NEXT / GROUP); k += WARPS) {
        const int tile = k % units * own, channel = k / units * GROUP;
        u32 sums[own][NT][4], from[NT / 2][4];
        Scales<NT / 2> scales;
        load_own(from, constants, channel);
        load_scales<NEXT>(scales, constants, channel);
        start<own, NT>(sums, from);
        convolve_down<M, 3, NEXT>(sums, outer, tile, weights + channel / 16 * 32);
        leave<SIZE / 2, true>(sums, scales, inner_out, tile, channel);
        const uint4 *last = constants + 3 * NEXT / 4;
        load_own(from, last, channel);
        load_scales<NEXT>(scales, last, channel);
        start<own, NT>(sums, from);
        convolve_down<M, 1, NEXT>(
            sums, outer, tile, weights + 9 * CHANNELS * NEXT / 16 + channel / 16 * 32);
        leave<SIZE / 2, false>(sums, scales, outer_out, tile, channel);
    }
}

#endif

#if STAGE == 1

// The first convolution; its bytes are in the first plane.
DEVICE void convolve_first(u32 (&sums)[PARTS][MT][NT][4], u32 in, int tile, const uint4 *own) {
    ROLLED for (int pair = 0; pair < PAIRS_OF_TAPS; pair++) {
        uint4 b[NT / 2];
        UNROLL for (int j = 0; j < NT / 2; j++) b[j] = load(own + (pair * (CHANNELS / 16) + j) * 32);
        UNROLL for (int i = 0; i < PARTS * MT; i++) {
            int y, x;
            place<SIZE>(tile + i, lane_index() & 15, y, x);
            u32 a[4];
            load_matrices(a, in + M::at(y, x) + taps_of<M>(pair));
            multiply<NT>(sums[i / MT][i % MT], a, b);
        }
    }
}

// Bytes of the normalised pixels, the first convolution, stage 1, and the first convolutions of stage 2.
KERNEL(THREADS, 1)
stage1(const float *images, const float *normalize, const uint4 *weights, const uint4 *constants,
    int convolutions, uint2 *kept, u32 *inner_out, u32 *outer_out, const int *rows, const int *count,
    int first) {
    constexpr u32 outer = 0, inner = M::bytes;
    size_t chosen = block_index();
    if (rows) {
        if (first + chosen >= *count) return;
        chosen = rows[first + chosen];
    }
    clear_borders<M>(2 * M::planes, THREADS);
    take_pixels<M, THREADS>(inner, images + chosen * 3 * 1024, normalize);
    barrier();
    kept += block_index() * (CHANNELS * 1024 / 4);
    ROLLED for (int k = warp_index(); k < UNITS * (CHANNELS / GROUP); k += WARPS) {
        const int unit = k % UNITS, channel = k / UNITS * GROUP;
        u32 sums[PARTS][MT][NT][4];
        start_parts(sums, constants, channel);
        convolve_first(sums, inner, tile_of(unit), weights + channel / 16 * 32 + lane_index());
        finish_parts(sums, constants, outer, inner, kept, unit, channel, true, false);
    }
    barrier();
    weights += PAIRS_OF_TAPS * 32 * CHANNELS / 16;
    constants += STRIDE_OF_CONSTANTS;
    convolve_blocks(outer, inner, kept, false, convolutions, weights, constants);
    convolve_next(outer, weights + convolutions * STRIDE_OF_WEIGHTS,
        constants + convolutions * STRIDE_OF_CONSTANTS, inner_out, outer_out);
}

#elif STAGE == 2

// Stage 2 from its second convolution on, and the first convolutions of stage 3.
KERNEL(THREADS, 2)
stage2(const uint4 *inner_in, uint2 *kept, const uint4 *weights, const uint4 *constants,
    int convolutions, u32 *inner_out, u32 *outer_out, const int *count, int first) {
    constexpr u32 outer = 0, inner = M::bytes;
    if (count && first + block_index() >= *count) return;
    clear_borders<M>(2 * M::planes, THREADS);
    take<M, THREADS>(inner, inner_in + block_index() * (CHANNELS * 256 / 16), thread_index());
    barrier();
    kept += block_index() * (CHANNELS * 256 / 4);
    convolve_blocks(outer, inner, kept, true, convolutions, weights, constants);
    convolve_next(outer, weights + convolutions * STRIDE_OF_WEIGHTS,
        constants + convolutions * STRIDE_OF_CONSTANTS, inner_out, outer_out);
}

#else

// Stage 3 from its second convolution on, the mean over the pixels and the linear layer. There is room for
// a surplus image, whose values do not matter.
KERNEL(THREADS, 2)
stage3(const uint4 *inner_in, uint2 *kept, const uint4 *weights, const uint4 *constants,
    int convolutions, const float *linear, const float *linear_bias, float *logits, int classes,
    unsigned images, const int *rows, const int *count, int first) {
    constexpr u32 outer = 0, inner = M::bytes;
    if (rows) {
        const unsigned left = *count > first ? *count - first : 0;
        images = left < images ? left : images;
    }
    const size_t image = block_index() * IMAGES;
    if (image >= images) return;
    clear_borders<M>(2 * IMAGES * M::planes, THREADS);
    UNROLL for (int i = 0; i < IMAGES; i++) {
        const uint4 *own = inner_in + (image + i) * (CHANNELS * 64 / 16);
        take<M, THREADS>(inner + i * PART, own, thread_index());
    }
    barrier();
    kept += image * (CHANNELS * 64 / 4);
    convolve_blocks(outer, inner, kept, true, convolutions, weights, constants);

    // Sums of four channels, of the even pixels and of the odd ones.
    for (int k = thread_index(); k < IMAGES * CHANNELS / 2; k += THREADS) {
        const int i = k / (CHANNELS / 2), odd = k / (CHANNELS / 4) % 2, four = k % (CHANNELS / 4);
        const uint2 *own = kept + i * KEPT_PART + four / 4 * 256 + four % 4;
        float sums[4] = {0, 0, 0, 0};
        for (int pixel = odd; pixel < 64; pixel += 2) {
            const uint2 both = get(own + pixel * 4);
            float value[4];
            unpack(both.x, value[0], value[1]);
            unpack(both.y, value[2], value[3]);
            UNROLL for (int c = 0; c < 4; c++) sums[c] = add(sums[c], value[c]);
        }
        UNROLL for (int c = 0; c < 4; c++) {
            write(inner + i * PART + (odd * CHANNELS + four * 4 + c) * 4, sums[c] / 64);
        }
    }
    barrier();
    for (int k = thread_index(); k < IMAGES * classes; k += THREADS) {
        const int i = k / classes, label = k % classes;
        if (image + i >= images) break;
        const u32 means = inner + i * PART;
        float sum = linear_bias[label];
        for (int c = 0; c < CHANNELS; c++) {
            const float mean = add(read_float(means + c * 4), read_float(means + (CHANNELS + c) * 4));
            sum = add(sum, times(mean, linear[c * classes + label]));
        }
        logits[(rows ? rows[first + image + i] : image + i) * classes + label] = sum;
    }
}

#endif
