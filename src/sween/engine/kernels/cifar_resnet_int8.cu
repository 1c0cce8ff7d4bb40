// The forward pass of the CIFAR ResNets in 8-bit integers: three kernels like those of cifar_resnet.cu.
//
// Follows integers.cu. Compile with the definitions of cifar_resnet.cu.

#if STAGE == 1

// A 3x3 convolution for MT tiles a row apart. A row of pixels is read once for all of them.
template <class In, int MT>
DEVICE void convolve_pairs(u32 (&sums)[MT][2][4], u32 row, const uint4 (&b)[PAIRS_OF_TAPS]) {
    UNROLL for (int y = 0; y < MT + 2; y++) {
        u32 a[4];
        load_matrices(a, row + In::at(y, 0) + upper_half(In::at(0, 1)));
        UNROLL for (int tap = 0; tap < 3; tap++) {
            uint4 own[1] = {b[tap]};
            if (y - tap >= 0 && y - tap < MT) multiply<2>(sums[y - tap], a, own);
        }
    }
    UNROLL for (int y = 0; y < MT + 2; y++) {
        u32 a[4];
        load_matrices(a, row + In::at(y, 2) + (y < MT ? upper_half(In::at(1, 0)) : 0));
        uint4 both[1] = {b[3]}, last[1] = {b[4]};
        if (y < MT) multiply<2>(sums[y], a, both);
        if (y >= 2) multiply<2>(sums[y - 2], a, last);
    }
}

// A 3x3 or 1x1 convolution from 16 channels that halves the size.
template <class In, int SIDE, int MT, int NT>
DEVICE void convolve_pairs_down(u32 (&sums)[MT][NT][4], u32 in, int tile, const uint4 *weights) {
    ROLLED for (int pair = 0; pair < (SIDE == 3 ? PAIRS_OF_TAPS : 1); pair++) {
        const u32 tap = SIDE == 1 ? In::at(1, 1) : taps_of<In>(pair);
        uint4 b[NT / 2];
        UNROLL for (int j = 0; j < NT / 2; j++) b[j] = load(weights + j * 32 + lane_index());
        UNROLL for (int m = 0; m < MT; m++) {
            int y, x;
            place<In::size / 2>(tile + m, lane_index() & 15, y, x);
            u32 a[4];
            load_matrices(a, in + In::at(2 * y, 2 * x) + tap);
            multiply<NT>(sums[m], a, b);
        }
        weights += NT / 2 * 32;
    }
}

// Bytes of the normalised pixels, the first convolution, stage 1, and the first convolutions of stage 2.
// 8 warps per image, each with 8 of its 64 tiles.
KERNEL(256, ROWS == 2 ? 3 : 2)
stage1(const float *images, const float *normalize, const uint4 *weights, const uint4 *constants,
    int convolutions, u32 *inner_out, u32 *outer_out, const int *rows, const int *count, int first) {
    using M = Bytes<16, 32>;
    constexpr u32 outer = 0, inner = M::bytes, kept = 2 * M::bytes;
    constexpr int own_constants = 3 * 16 / 4, later_constants = 3 * 32 / 4;

    size_t chosen = block_index();
    if (rows) {
        if (first + chosen >= *count) return;
        chosen = rows[first + chosen];
    }
    clear_borders<M>(2, 256);
    take_pixels<M, 256>(inner, images + chosen * 3 * 1024, normalize);
    barrier();

    // Before the first convolution, -1, there is nothing to add.
    ROLLED for (int i = -1; i < convolutions; i++) {
        uint4 b[PAIRS_OF_TAPS];
        UNROLL for (int k = 0; k < PAIRS_OF_TAPS; k++) b[k] = load(weights + k * 32 + lane_index());
        u32 from[1][4];
        load_own(from, constants, 0);
        Scales<1> scales;
        load_scales<16>(scales, constants, 0);
        const bool second = i & 1;
        ROLLED for (int k = 0; k < 8; k += ROWS) {
            // Tiles of 16 pixels: 4 rows on the left, and on the right.
            const int y = warp_index() * 4 + k % 4, x = k / 4 * 16, own = x + (lane_index() >> 2);
            const u32 row = (second ? inner : outer) + M::at(y, x + (lane_index() & 15));
            u32 sums[ROWS][2][4];
            start<ROWS, 2>(sums, from);
            convolve_pairs<M, ROWS>(sums, row, b);
            if (second) {
                finish_outer<M>(sums, scales, outer, kept, y, own, 0, i > 0);
            } else {
                finish_inner<M>(sums, scales, inner, y, own, 0);
            }
        }
        weights += PAIRS_OF_TAPS * 32;
        constants += own_constants;
        barrier();
    }

    const int tile = warp_index() * 2;
    u32 sums[2][4][4], from[2][4];
    Scales<2> scales;
    load_own(from, constants, 0);
    load_scales<32>(scales, constants, 0);
    start<2, 4>(sums, from);
    convolve_pairs_down<M, 3>(sums, outer, tile, weights);
    leave<16, true>(sums, scales, inner_out + block_index() * 2048, tile, 0);
    constants += later_constants;
    load_own(from, constants, 0);
    load_scales<32>(scales, constants, 0);
    start<2, 4>(sums, from);
    convolve_pairs_down<M, 1>(sums, outer, tile, weights + PAIRS_OF_TAPS * 2 * 32);
    leave<16, false>(sums, scales, outer_out + block_index() * 4096, tile, 0);
}

#else

// A convolution of a block that keeps the size: into `inner`, or from there into `outer` and `kept`.
template <class M, int MT, int NT>
DEVICE void convolve_block(u32 outer, u32 inner, u32 kept, int tile, int channel, bool second,
    const uint4 *weights, const uint4 *constants) {
    u32 sums[MT][NT][4], from[NT / 2][4];
    load_own(from, constants, channel);
    start<MT, NT>(sums, from);
    convolve<M>(sums, second ? inner : outer, tile, weights + channel / 16 * 32);
    Scales<NT / 2> scales;
    load_scales<M::channels>(scales, constants, channel);
    int y, x;
    place<M::size>(tile, lane_index() >> 2, y, x);
    if (second) {
        finish_outer<M>(sums, scales, outer, kept, y, x, channel, true);
    } else {
        finish_inner<M>(sums, scales, inner, y, x, channel);
    }
}

#endif

#if STAGE == 2

// Stage 2 from its second convolution on, and the first convolutions of stage 3.
// 4 warps per image, each with 4 of its rows.
KERNEL(128, 4)
stage2(const uint4 *inner_in, const uint4 *outer_in, const uint4 *weights, const uint4 *constants,
    int convolutions, u32 *inner_out, u32 *outer_out, const int *count, int first) {
    using M = Bytes<32, 16>;
    constexpr u32 outer = 0, inner = M::bytes, kept = 2 * M::bytes;
    constexpr int own_constants = 3 * 32 / 4, later_constants = 3 * 64 / 4;

    if (count && first + block_index() >= *count) return;
    clear_borders<M>(4, 128);
    take<M, 128>(inner, inner_in + block_index() * 512, thread_index());
    take_floats<M, 128>(kept, outer_in + block_index() * 1024, thread_index());
    barrier();

    ROLLED for (int i = 0; i < convolutions; i++) {
        convolve_block<M, 4, 4>(
            outer, inner, kept, warp_index() * 4, 0, !(i & 1), weights, constants);
        weights += 9 * 2 * 32;
        constants += own_constants;
        barrier();
    }

    const int channel = warp_index() * 16;
    u32 sums[4][2][4], from[1][4];
    Scales<1> scales;
    load_own(from, constants, channel);
    load_scales<64>(scales, constants, channel);
    start<4, 2>(sums, from);
    convolve_down<M, 3>(sums, outer, 0, weights + channel / 16 * 32);
    leave<8, true>(sums, scales, inner_out + block_index() * 1024, 0, channel);
    constants += later_constants;
    load_own(from, constants, channel);
    load_scales<64>(scales, constants, channel);
    start<4, 2>(sums, from);
    convolve_down<M, 1>(sums, outer, 0, weights + 9 * 4 * 32 + channel / 16 * 32);
    leave<8, false>(sums, scales, outer_out + block_index() * 2048, 0, channel);
}

#elif STAGE == 3

// Stage 3 from its second convolution on, the mean over the pixels and the linear layer.
// IMAGES per block, 2 warps each, one for the lower and one for the upper 32 channels.
KERNEL(64 * IMAGES, 8 / IMAGES)
stage3(const uint4 *inner_in, const uint4 *outer_in, const uint4 *weights, const uint4 *constants,
    int convolutions, const float *linear, const float *linear_bias, float *logits, int classes,
    unsigned images, const int *rows, const int *count, int first) {
    using M = Bytes<64, 8>;
    const int own = thread_index() / 64, thread = thread_index() % 64;
    const size_t image = block_index() * IMAGES + own;
    const u32 outer = own * 2 * M::bytes, inner = outer + M::bytes;
    const u32 kept = IMAGES * 2 * M::bytes + own * 64 * 64 * 2;

    if (rows) {
        const unsigned left = *count > first ? *count - first : 0;
        images = left < images ? left : images;
        if (block_index() * IMAGES >= images) return;
    }
    clear_borders<M>(IMAGES * 8, IMAGES * 64);
    const size_t taken = image < images ? image : images - 1;  // a surplus image repeats the last one
    take<M, 64>(inner, inner_in + taken * 256, thread);
    take_floats<M, 64>(kept, outer_in + taken * 512, thread);
    barrier();

    ROLLED for (int i = 0; i < convolutions; i++) {
        convolve_block<M, 4, 4>(
            outer, inner, kept, 0, (warp_index() & 1) * 32, !(i & 1), weights, constants);
        weights += 9 * 2 * 4 * 32;
        constants += 3 * 64 / 4;
        barrier();
    }

    {  // A thread sums two channels of every other pixel.
        const int pair = thread % 32, odd = thread / 32;
        float low = 0, high = 0;
        for (int i = odd; i < 64; i += 2) {
            float a, b;
            unpack(read_word(kept + (pair / 8 * 64 + i) * FLOAT_PIXEL + pair % 8 * 4), a, b);
            low = add(low, a);
            high = add(high, b);
        }
        write(inner + (odd * 64 + pair * 2) * 4, low / 64);
        write(inner + (odd * 64 + pair * 2 + 1) * 4, high / 64);
    }
    barrier();
    if (image >= images) return;
    const size_t place = rows ? rows[first + image] : image;
    for (int k = thread; k < classes; k += 64) {
        float sum = linear_bias[k];
        UNROLL for (int c = 0; c < 64; c++) {
            const float mean = add(read_float(inner + c * 4), read_float(inner + (64 + c) * 4));
            sum = add(sum, times(mean, linear[c * classes + k]));
        }
        logits[place * classes + k] = sum;
    }
}

#endif
