// The forward pass of the CIFAR ResNets in three kernels, one per stage, for batches of any size.
//
// An image's activations stay in shared memory for a whole stage, so device memory is accessed only
// between stages; products are in float16, sums in float32. Each image is computed separately, by the
// same instructions wherever it is in the batch: outputs do not depend on the other images or on the
// size of the batch.
//
// With `rows`, only the images rows[first], rows[first + 1] ... before rows[*count] are computed, as
// many as there are blocks for; their number is known only on the device. Between stages they are
// stored contiguously; the logits are written to the images' original positions. Without `rows` (0),
// all images are computed.
//
// Follows convolution.cu. Compile with -DSTAGE=1, 2 or 3; -DROWS is the number of image rows that a
// warp of stage 1 processes at once (2 or 4: fewer reads of shared memory, more registers), -DIMAGES
// the number of images per block in stage 3 (2 or 4: fewer reads of weights, more shared memory). With
// -DMASKS, a thread also writes which of its 64 sums of each layer are positive, for
// cifar_resnet_gradient.cu: 64 bits for each image, layer and thread of the image.

#ifdef MASKS
#define MASKS_TOO , uint2 *masks
#define KEEP_MASK(mask, threads) keep(masks, mask), masks += threads
DEVICE void keep(uint2 *where, u64 mask) {
    *where = uint2{static_cast<u32>(mask), static_cast<u32>(mask >> 32)};
}
#else
#define MASKS_TOO
#define KEEP_MASK(mask, threads)
#endif

#if STAGE == 1

DEVICE void load_all(uint4 (&b)[3][3][1], const uint4 *weights) {
    UNROLL for (int column = 0; column < 3; column++) {
        load_column<16, 2>(b[column], weights + column * 3 * 32 + lane_index());
    }
}

// Normalised pixels, the first convolution, stage 1, and the first convolutions of stage 2.
// 8 warps per image, each with 8 of its 64 tiles.
KERNEL(256, ROWS == 2 ? 3 : 2)
stage1(const float *images, const float *normalize, const uint4 *weights, const float *bias,
    int convolutions, u32 *inner_out, u32 *outer_out, const int *rows, const int *count,
    int first MASKS_TOO) {
    using M = Map<16, 32>;
    constexpr u32 outer = 0, inner = M::bytes;
    // A warp's tiles: 4 rows on the left, and on the right.
    auto tile_of = [](int i) { return i / 4 * 32 + warp_index() * 4 + i % 4; };

    size_t chosen = block_index();
    if (rows) {
        if (first + chosen >= *count) return;
        chosen = rows[first + chosen];
    }
#ifdef MASKS
    masks += block_index() * (convolutions + 1) * 256 + thread_index();
#endif
    clear_borders<M>(4, 256);
    const float *image = images + chosen * 3 * 1024;
    float pixels[4][3];
    UNROLL for (int i = 0; i < 12; i++) {
        pixels[i / 3][i % 3] = image[i % 3 * 1024 + i / 3 * 256 + thread_index()];
    }
    UNROLL for (int k = 0; k < 4; k++) {
        const int i = k * 256 + thread_index();
        UNROLL for (int c = 0; c < 3; c++) {  // by the deviation's inverse
            pixels[k][c] = (pixels[k][c] - normalize[c]) * normalize[3 + c];
        }
        write(inner + M::at(i / 32 + 1, i % 32 + 1),
              uint4{pack(pixels[k][0], pixels[k][1]), pack(pixels[k][2], 0), 0, 0});
    }
    barrier();

    {  // Three channels fill one plane: two taps share a product, and a tenth has weight 0.
        uint4 b[5];
        UNROLL for (int i = 0; i < 5; i++) b[i] = load(weights + i * 32 + lane_index());
        u64 mask = 0;
        for (int i = 0; i < 8; i++) {
            const int tile = tile_of(i);
            float sums[1][2][4];
            start<1, 2>(sums, bias);
            int y, x;
            place<32>(tile, lane_index() & 15, y, x);
            const u32 row = inner + M::at(y, x);
            UNROLL for (int pair = 0; pair < 5; pair++) {
                const int even = 2 * pair, odd = pair == 4 ? even : even + 1;
                u32 left = M::at(even / 3, even % 3), right = M::at(odd / 3, odd % 3), a[4];
                load_matrices(a, row + (lane_index() < 16 ? left : right));
                uint4 own[1] = {b[pair]};
                multiply<2>(sums[0], a, own);
            }
            mask |= finish<M>(sums, outer, tile, 0, false) << i * 8;
        }
        KEEP_MASK(mask, 256);
        weights += 5 * 32;
        bias += 16;
    }
    barrier();

    ROLLED for (int i = 0; i < convolutions; i++) {
        uint4 b[3][3][1];
        load_all(b, weights);
        const bool second = i & 1;
        const u32 in = second ? inner : outer;
        u64 mask = 0;
        ROLLED for (int k = 0; k < 8; k += ROWS) {
            const int tile = tile_of(k);
            float sums[ROWS][2][4];
            start<ROWS, 2>(sums, bias);
            const u32 row = row_of<M, 1, 32>(in, tile);
            UNROLL for (int column = 0; column < 3; column++) {
                multiply_column<M, ROWS, 2>(sums, row + M::at(0, column), b[column]);
            }
            mask |= finish<M>(sums, second ? outer : inner, tile, 0, second) << k * 8;
        }
        KEEP_MASK(mask, 256);
        weights += 9 * 32;
        bias += 16;
        barrier();
    }

    const int tile = warp_index() * 2;
    float sums[2][4][4];
    start<2, 4>(sums, bias);
    convolve_down<M, 3>(sums, outer, tile, weights);
    leave<16>(sums, inner_out + block_index() * 4096, tile, 0, true);
    start<2, 4>(sums, bias + 32);
    convolve_down<M, 1>(sums, outer, tile, weights + 9 * 2 * 32);
    leave<16>(sums, outer_out + block_index() * 4096, tile, 0, false);
}

#elif STAGE == 2

// Stage 2 from its second convolution on, and the first convolutions of stage 3.
// 4 warps per image, each with 4 of its rows.
KERNEL(128, 4)
stage2(const uint4 *inner_in, const uint4 *outer_in, const uint4 *weights, const float *bias,
    int convolutions, u32 *inner_out, u32 *outer_out, const int *count, int first MASKS_TOO) {
    using M = Map<32, 16>;
    constexpr u32 outer = 0, inner = M::bytes;
    const int tile = warp_index() * 4;

    if (count && first + block_index() >= *count) return;
#ifdef MASKS
    masks += block_index() * convolutions * 128 + thread_index();
#endif
    clear_borders<M>(8, 128);
    take<M, 128>(inner, inner_in + block_index() * 1024, thread_index());
    take<M, 128>(outer, outer_in + block_index() * 1024, thread_index());
    barrier();

    ROLLED for (int i = 0; i < convolutions; i++) {
        const bool second = !(i & 1);
        float sums[4][4][4];
        start<4, 4>(sums, bias);
        convolve<M>(sums, second ? inner : outer, tile, weights);
        const u64 mask = finish<M>(sums, second ? outer : inner, tile, 0, second);
        KEEP_MASK(mask, 128);
        weights += 9 * 2 * 2 * 32;
        bias += 32;
        barrier();
    }

    const int channel = warp_index() * 16;
    float sums[4][2][4];
    start<4, 2>(sums, bias + channel);
    convolve_down<M, 3>(sums, outer, 0, weights + channel / 16 * 32);
    leave<8>(sums, inner_out + block_index() * 2048, 0, channel, true);
    start<4, 2>(sums, bias + 64 + channel);
    convolve_down<M, 1>(sums, outer, 0, weights + 9 * 2 * 4 * 32 + channel / 16 * 32);
    leave<8>(sums, outer_out + block_index() * 2048, 0, channel, false);
}

#else

// Stage 3 from its second convolution on, the mean over the pixels and the linear layer.
// IMAGES per block, 2 warps each, one for the lower and one for the upper 32 channels.
KERNEL(64 * IMAGES, 8 / IMAGES)
stage3(const uint4 *inner_in, const uint4 *outer_in, const uint4 *weights, const float *bias,
    int convolutions, const float *linear, const float *linear_bias, float *logits, int classes,
    unsigned images, const int *rows, const int *count, int first MASKS_TOO) {
    using M = Map<64, 8>;
    const int own = thread_index() / 64;
    const size_t image = block_index() * IMAGES + own;
    const u32 outer = own * 2 * M::bytes, inner = outer + M::bytes;
    const int channel = (warp_index() & 1) * 32;
#ifdef MASKS
    masks += image * convolutions * 64 + thread_index() % 64;
#endif

    if (rows) {
        const unsigned left = *count > first ? *count - first : 0;
        images = left < images ? left : images;
        if (block_index() * IMAGES >= images) return;
    }
    clear_borders<M>(IMAGES * 16, IMAGES * 64);
    const size_t taken = image < images ? image : images - 1;  // a surplus image repeats the last one
    take<M, 64>(inner, inner_in + taken * 512, thread_index() % 64);
    take<M, 64>(outer, outer_in + taken * 512, thread_index() % 64);
    barrier();

    ROLLED for (int i = 0; i < convolutions; i++) {
        const bool second = !(i & 1);
        float sums[4][4][4];
        start<4, 4>(sums, bias + channel);
        convolve<M>(sums, second ? inner : outer, 0, weights + channel / 16 * 32);
        const u64 mask = finish<M>(sums, second ? outer : inner, 0, channel, second);
        KEEP_MASK(mask, 64);
        weights += 9 * 4 * 4 * 32;
        bias += 64;
        barrier();
    }

    {  // A thread sums two channels of every other row.
        const int pair = thread_index() % 32, odd = thread_index() / 32 % 2;
        float low = 0, high = 0;
        for (int i = 0; i < 32; i++) {
            float a, b;
            u32 pixel = outer + M::at(i / 8 * 2 + odd + 1, i % 8 + 1);
            unpack(read_word(pixel + pair / 4 * M::plane + pair % 4 * 4), a, b);
            low += a;
            high += b;
        }
        write(inner + (odd * 64 + pair * 2) * 4, low / 64);
        write(inner + (odd * 64 + pair * 2 + 1) * 4, high / 64);
    }
    barrier();
    if (image >= images) return;
    const size_t place = rows ? rows[first + image] : image;
    for (int k = thread_index() % 64; k < classes; k += 64) {
        float sum = linear_bias[k];
        UNROLL for (int c = 0; c < 64; c++) {
            float mean = read_float(inner + c * 4) + read_float(inner + (64 + c) * 4);
            sum += mean * linear[c * classes + k];
        }
        logits[place * classes + k] = sum;
    }
}

#endif
