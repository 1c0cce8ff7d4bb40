// The forward pass of CIFAR ResNets with two or three times the channels: three kernels, one per stage.
//
// As cifar_resnet.cu, but for what more channels ask for: an image's activations fill most of shared
// memory, so fewer warps have room, and each computes PARTS * 64 pixels of GROUP channels at once, with the
// weights of its next products under way.
//
// Follows convolution.cu. Compile with STAGE, CHANNELS, NEXT (the channels of the next stage), GROUP (which
// divides both, a multiple of 16), PARTS (1 or 2), WARPS and BLOCKS (of a multiprocessor).

constexpr int SIZE = 64 >> STAGE, MT = 4, NT = GROUP / 8;
constexpr int THREADS = WARPS * 32;
constexpr int IMAGES = SIZE == 8 ? 2 : 1;
constexpr int UNITS = SIZE * SIZE * IMAGES / (PARTS * MT * 16);  // of pixels

using M = Map<CHANNELS, SIZE>;

// One warp's parts: in two images, or four rows apart.
constexpr u32 PART = SIZE == 8 ? 2 * M::bytes : 4 * M::width * 16;

constexpr int STRIDE_OF_WEIGHTS = 9 * CHANNELS * CHANNELS / 8;  // of 16 bytes

DEVICE int tile_of(int unit) { return SIZE == 8 ? 0 : unit * PARTS * MT; }
DEVICE u32 image_of(int unit) { return SIZE == 8 ? unit * PARTS * PART : 0; }

// A 3x3 convolution that keeps the size, from the lane's own row of the first part.
DEVICE void convolve_parts(float (&sums)[PARTS][MT][NT][4], u32 row, const uint4 *own) {
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

DEVICE void start_parts(float (&sums)[PARTS][MT][NT][4], const float *bias) {
    UNROLL for (int part = 0; part < PARTS; part++) start<MT, NT>(sums[part], bias);
}

DEVICE void finish_parts(const float (&sums)[PARTS][MT][NT][4], u32 out, int unit, int channel,
    bool residual) {
    UNROLL for (int part = 0; part < PARTS; part++) {
        finish<M>(sums[part], out + part * PART, tile_of(unit), channel, residual);
    }
}

// The convolutions of blocks, of which the first begins a block or ends one (`second`).
DEVICE void convolve_blocks(u32 outer, u32 inner, bool second, int convolutions,
    const uint4 *weights, const float *bias) {
    ROLLED for (int i = 0; i < convolutions; i++) {
        const u32 in = second ? inner : outer, out = second ? outer : inner;
        ROLLED for (int k = warp_index(); k < UNITS * (CHANNELS / GROUP); k += WARPS) {
            const int unit = k % UNITS, channel = k / UNITS * GROUP;
            float sums[PARTS][MT][NT][4];
            start_parts(sums, bias + channel);
            const u32 row = row_of<M, 1, SIZE>(in + image_of(unit), tile_of(unit));
            convolve_parts(sums, row, weights + channel / 16 * 32 + lane_index());
            finish_parts(sums, out + image_of(unit), unit, channel, second);
        }
        second = !second;
        weights += STRIDE_OF_WEIGHTS;
        bias += CHANNELS;
        barrier();
    }
}

#if STAGE < 3

// The first convolutions of the next stage, the 3x3 one and that of the shortcut.
DEVICE void convolve_next(u32 outer, const uint4 *weights, const float *bias, u32 *inner_out,
    u32 *outer_out) {
    constexpr int half = SIZE / 2, tiles = half * half / 16, groups = NEXT / GROUP;
    constexpr int share = tiles * groups / WARPS, own = share < 1 ? 1 : share > MT ? MT : share;
    inner_out += block_index() * (NEXT * half * half / 2);
    outer_out += block_index() * (NEXT * half * half / 2);
    ROLLED for (int k = warp_index(); k < tiles / own * groups; k += WARPS) {
        const int tile = k % (tiles / own) * own, channel = k / (tiles / own) * GROUP;
        const uint4 *own_weights = weights + channel / 16 * 32;
        float sums[own][NT][4];
        start<own, NT>(sums, bias + channel);
        convolve_down<M, 3, NEXT>(sums, outer, tile, own_weights);
        leave<half>(sums, inner_out, tile, channel, true);
        start<own, NT>(sums, bias + NEXT + channel);
        convolve_down<M, 1, NEXT>(sums, outer, tile, own_weights + 9 * CHANNELS * NEXT / 8);
        leave<half>(sums, outer_out, tile, channel, false);
    }
}

#endif

#if STAGE == 1

// The first convolution: three channels fill one plane, two taps share a product, and a tenth has weight 0.
DEVICE void convolve_first(float (&sums)[PARTS][MT][NT][4], u32 in, int tile, const uint4 *own) {
    ROLLED for (int pair = 0; pair < 5; pair++) {
        const int even = 2 * pair, odd = pair == 4 ? even : even + 1, tap = lane_index() < 16 ? even : odd;
        uint4 b[NT / 2];
        UNROLL for (int j = 0; j < NT / 2; j++) b[j] = load(own + (pair * (CHANNELS / 16) + j) * 32);
        UNROLL for (int i = 0; i < PARTS * MT; i++) {
            int y, x;
            place<SIZE>(tile + i, lane_index() & 15, y, x);
            u32 a[4];
            load_matrices(a, in + M::at(y + tap / 3, x + tap % 3));
            multiply<NT>(sums[i / MT][i % MT], a, b);
        }
    }
}

// Normalised pixels, the first convolution, stage 1, and the first convolutions of stage 2.
KERNEL(THREADS, BLOCKS)
stage1(const float *images, const float *normalize, const uint4 *weights, const float *bias,
    int convolutions, u32 *inner_out, u32 *outer_out, const int *rows, const int *count, int first) {
    constexpr u32 outer = 0, inner = M::bytes;
    size_t chosen = block_index();
    if (rows) {
        if (first + chosen >= *count) return;
        chosen = rows[first + chosen];
    }
    clear_borders<M>(2 * M::planes, THREADS);
    const float *image = images + chosen * 3 * 1024;
    for (int i = thread_index(); i < 1024; i += THREADS) {
        float pixel[3];
        UNROLL for (int c = 0; c < 3; c++) {  // by the deviation's inverse
            pixel[c] = (image[c * 1024 + i] - normalize[c]) * normalize[3 + c];
        }
        write(inner + M::at(i / 32 + 1, i % 32 + 1),
              uint4{pack(pixel[0], pixel[1]), pack(pixel[2], 0), 0, 0});
    }
    barrier();
    ROLLED for (int k = warp_index(); k < UNITS * (CHANNELS / GROUP); k += WARPS) {
        const int unit = k % UNITS, channel = k / UNITS * GROUP;
        float sums[PARTS][MT][NT][4];
        start_parts(sums, bias + channel);
        convolve_first(sums, inner, tile_of(unit), weights + channel / 16 * 32 + lane_index());
        finish_parts(sums, outer, unit, channel, false);
    }
    barrier();
    weights += 5 * 32 * CHANNELS / 16;
    bias += CHANNELS;
    convolve_blocks(outer, inner, false, convolutions, weights, bias);
    convolve_next(outer, weights + convolutions * STRIDE_OF_WEIGHTS, bias + convolutions * CHANNELS,
        inner_out, outer_out);
}

#elif STAGE == 2

// Stage 2 from its second convolution on, and the first convolutions of stage 3.
KERNEL(THREADS, BLOCKS)
stage2(const uint4 *inner_in, const uint4 *outer_in, const uint4 *weights, const float *bias,
    int convolutions, u32 *inner_out, u32 *outer_out, const int *count, int first) {
    constexpr u32 outer = 0, inner = M::bytes;
    if (count && first + block_index() >= *count) return;
    clear_borders<M>(2 * M::planes, THREADS);
    take<M, THREADS>(inner, inner_in + block_index() * (CHANNELS * 256 / 8), thread_index());
    take<M, THREADS>(outer, outer_in + block_index() * (CHANNELS * 256 / 8), thread_index());
    barrier();
    convolve_blocks(outer, inner, true, convolutions, weights, bias);
    convolve_next(outer, weights + convolutions * STRIDE_OF_WEIGHTS, bias + convolutions * CHANNELS,
        inner_out, outer_out);
}

#else

// Stage 3 from its second convolution on, the mean over the pixels and the linear layer.
KERNEL(THREADS, BLOCKS)
stage3(const uint4 *inner_in, const uint4 *outer_in, const uint4 *weights, const float *bias,
    int convolutions, const float *linear, const float *linear_bias, float *logits, int classes,
    unsigned images, const int *rows, const int *count, int first) {
    constexpr u32 outer = 0, inner = M::bytes, next = 2 * M::bytes;  // image
    if (rows) {
        const unsigned left = *count > first ? *count - first : 0;
        images = left < images ? left : images;
    }
    const size_t image = block_index() * IMAGES;
    if (image >= images) return;
    clear_borders<M>(2 * IMAGES * M::planes, THREADS);
    UNROLL for (int i = 0; i < IMAGES; i++) {
        // A surplus image repeats the last one.
        const size_t taken = (image + i < images ? image + i : images - 1) * (CHANNELS * 64 / 8);
        take<M, THREADS>(inner + i * next, inner_in + taken, thread_index());
        take<M, THREADS>(outer + i * next, outer_in + taken, thread_index());
    }
    barrier();
    convolve_blocks(outer, inner, true, convolutions, weights, bias);

    // A thread sums two channels of every other row.
    for (int k = thread_index(); k < IMAGES * CHANNELS; k += THREADS) {
        const int i = k / CHANNELS, odd = k / (CHANNELS / 2) % 2, pair = k % (CHANNELS / 2);
        const u32 plane = outer + i * next + pair / 4 * M::plane + pair % 4 * 4;
        float low = 0, high = 0;
        for (int pixel = 0; pixel < 32; pixel++) {
            float a, b;
            unpack(read_word(plane + M::at(pixel / 8 * 2 + odd + 1, pixel % 8 + 1)), a, b);
            low += a;
            high += b;
        }
        write(inner + i * next + (odd * CHANNELS + pair * 2) * 4, low / 64);
        write(inner + i * next + (odd * CHANNELS + pair * 2 + 1) * 4, high / 64);
    }
    barrier();
    for (int k = thread_index(); k < IMAGES * classes; k += THREADS) {
        const int i = k / classes, label = k % classes;
        if (image + i >= images) break;
        const u32 means = inner + i * next;
        float sum = linear_bias[label];
        for (int c = 0; c < CHANNELS; c++) {
            const float mean = read_float(means + c * 4) + read_float(means + (CHANNELS + c) * 4);
            sum += mean * linear[c * classes + label];
        }
        logits[(rows ? rows[first + image + i] : image + i) * classes + label] = sum;
    }
}

#endif
