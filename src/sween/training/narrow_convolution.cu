// 3x3 convolutions of few channels and their gradients, for training: bfloat16, channels last, any number
// of images. Libraries have no fast kernels for 16 channels.
//
// Follows convolution.cu, with BRAIN. A block takes every `blocks`-th image. Compile with FORWARD (16
// channels of 32 x 32 pixels), or with CHANNELS and SIZE for the gradient with respect to the weights.

#ifndef SWEEN_EMULATED

// As load_matrices, each 8x8 matrix transposed.
DEVICE void load_transposed(u32 (&a)[4], u32 offset) {
    u32 address = static_cast<u32>(__cvta_generic_to_shared(shared)) + offset;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address));
}

#endif

// An image from device memory, where the channels of a pixel are consecutive, into planes of 8 channels with a
// border of one pixel or none. It is there after `copied` and a barrier.
template <int C, int S, int BORDER>
DEVICE void fetch(u32 out, const uint4 *images, size_t image) {
    constexpr int width = S + 2 * BORDER, planes = C / 8;
    images += image * (planes * S * S);
    UNROLL for (int i = 0; i < planes * S * S / 256; i++) {
        const int k = i * 256 + thread_index(), pixel = k / planes;
        const int y = pixel / S + BORDER, x = pixel % S + BORDER;
        copy(out + ((k % planes * width + y) * width + x) * 16, images + k);
    }
}

#ifdef FORWARD

// A lane's weights of one tap. Output channels are ordered so that a lane's sums are of four consecutive ones.
DEVICE uint4 fragment(const float *weights, int tap, bool transposed) {
    u32 own[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const int in = (lane_index() & 3) * 2 + i % 2 * 8, column = lane_index() >> 2;
        const int out = column / 2 * 4 + i / 2 * 2 + column % 2;
        float both[2];
        UNROLL for (int k = 0; k < 2; k++) {
            both[k] = transposed ? weights[((in + k) * 16 + out) * 9 + 8 - tap]
                                 : weights[(out * 16 + in + k) * 9 + tap];
        }
        own[i] = pack(both[0], both[1]);
    }
    return uint4{own[0], own[1], own[2], own[3]};
}

// With `transposed`, the gradient with respect to the images: `images` are those of the outputs.
KERNEL(256, 3)
convolution(const uint4 *images, const float *weights, int transposed, uint2 *outputs, int count,
    int blocks) {
    using M = Map<16, 32>;
    uint4 b[3][3][1];
    UNROLL for (int tap = 0; tap < 9; tap++) {
        b[tap % 3][tap / 3][0] = fragment(weights, tap, transposed);
    }
    clear_borders<M>(4, 256);
    u32 now = 0;
    fetch<16, 32, 1>(now, images, block_index());
    for (int image = block_index(); image < count; image += blocks) {
        copied();
        barrier();
        if (image + blocks < count) fetch<16, 32, 1>(M::bytes - now, images, image + blocks);
        ROLLED for (int k = 0; k < 8; k += 2) {
            // Tiles of 16 pixels: 4 rows on the left, and on the right.
            const int tile = k / 4 * 32 + warp_index() * 4 + k % 4;
            float sums[2][2][4];
            UNROLL for (int i = 0; i < 16; i++) sums[i / 8][i / 4 % 2][i % 4] = 0;
            const u32 row = row_of<M, 1, 32>(now, tile);
            UNROLL for (int column = 0; column < 3; column++) {
                multiply_column<M, 2, 2>(sums, row + M::at(0, column), b[column]);
            }
            UNROLL for (int i = 0; i < 4; i++) {
                int y, x;
                place<32>(tile + i / 2, (lane_index() >> 2) + i % 2 * 8, y, x);
                const float *low = sums[i / 2][0] + i % 2 * 2, *high = sums[i / 2][1] + i % 2 * 2;
                outputs[static_cast<size_t>(image) * 4096 + (y * 32 + x) * 4 + (lane_index() & 3)] =
                    uint2{pack(low[0], low[1]), pack(high[0], high[1])};
            }
        }
        now = M::bytes - now;
    }
}

#else

// Sums over the images and pixels of a block, one (out, in, 3, 3) for each block. A warp has 16 output by 16
// input channels, and shares the pixels with the other warps of these channels.
KERNEL(256, 2)
weight_gradient(const uint4 *images, const uint4 *gradients, float *partial, int count, int blocks) {
    using M = Map<CHANNELS, SIZE>;
    constexpr int parts = CHANNELS / 16, shares = 8 / (parts * parts);
    constexpr u32 behind = M::bytes, plane = SIZE * SIZE * 16;
    const int out = warp_index() % parts, in = warp_index() / parts % parts;
    const int share = warp_index() / (parts * parts);

    float sums[9][2][4];
    UNROLL for (int i = 0; i < 72; i++) sums[i / 8][i / 4 % 2][i % 4] = 0;
    clear_borders<M>(M::planes, 256);
    for (int image = block_index(); image < count; image += blocks) {
        fetch<CHANNELS, SIZE, 1>(0, images, image);
        fetch<CHANNELS, SIZE, 0>(behind, gradients, image);
        copied();
        barrier();
        ROLLED for (int tile = share; tile < SIZE * SIZE / 16; tile += shares) {
            const int lane = lane_index();
            int y, x;
            place<SIZE>(tile, (lane & 7) + (lane >> 4) * 8, y, x);
            u32 a[4];
            load_transposed(a, behind + (out * 2 + (lane >> 3 & 1)) * plane + (y * SIZE + x) * 16);
            place<SIZE>(tile, lane & 15, y, x);
            const u32 row = (in * 2 + (lane >> 4)) * M::plane + M::at(y, x);
            UNROLL for (int tap = 0; tap < 9; tap++) {
                u32 b[4];
                load_transposed(b, row + M::at(tap / 3, tap % 3));
                multiply_add(sums[tap][0], a, b[0], b[1]);
                multiply_add(sums[tap][1], a, b[2], b[3]);
            }
        }
        barrier();
    }

    // One share after the other, so that the order of a sum is always the same.
    ROLLED for (int turn = 0; turn < shares; turn++) {
        if (share == turn) {
            UNROLL for (int i = 0; i < 72; i++) {
                const int row = out * 16 + (lane_index() >> 2) + i % 4 / 2 * 8;
                const int column = in * 16 + i / 4 % 2 * 8 + (lane_index() & 3) * 2 + i % 2;
                const u32 there = ((row * CHANNELS + column) * 9 + i / 8) * 4;
                const float sum = sums[i / 8][i / 4 % 2][i % 4];
                write(there, turn ? read_float(there) + sum : sum);
            }
        }
        barrier();
    }
    partial += block_index() * (CHANNELS * CHANNELS * 9);
    for (int i = thread_index(); i < CHANNELS * CHANNELS * 9; i += 256) partial[i] = read_float(i * 4);
}

#endif
