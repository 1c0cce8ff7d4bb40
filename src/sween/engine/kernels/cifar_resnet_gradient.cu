// Gradients of the CIFAR ResNets with respect to their images: three kernels, the last stage first.
//
// As cifar_resnet.cu, backwards: a convolution's gradient is a convolution with its weights transposed
// and turned around, and relu lets through what its mask says, as left by that file's kernels with
// -DMASKS. A thread reads the masks that it wrote there: both use the same tiles. Gradients are float16;
// the caller scales them so that they fit.
//
// Follows convolution.cu. Compile with the definitions of cifar_resnet.cu.

// The masks of one thread, all layers of one image.
struct Masks {
    const uint2 *first;
    int threads;
};

DEVICE u64 mask_of(const Masks &masks, int layer) {
    const uint2 both = masks.first[layer * masks.threads];
    return both.x | static_cast<u64>(both.y) << 32;
}

// Both halves of a word, as the two lowest bits of a mask say.
DEVICE u32 select(u64 mask) {
    return (mask & 1 ? 0xffffu : 0) | (mask & 2 ? 0xffff0000u : 0);
}

// Calls `work(where, m, half, n)` for the lane's words of MT tiles at `out`.
template <class M, int MT, int NT, class Work>
DEVICE void each_word(u32 out, int tile, int channel, Work work) {
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int half = 0; half < 2; half++) {
            int y, x;
            place<M::size>(tile + m, (lane_index() >> 2) + 8 * half, y, x);
            const u32 pixel = out + M::at(y + 1, x + 1) + (lane_index() & 3) * 4;
            UNROLL for (int n = 0; n < NT; n++) {
                work(pixel + (channel / 8 + n) * M::plane, m, half, n);
            }
        }
    }
}

// Sums into the gradients at `out`, as far as the mask lets them through; with `residual` those that
// are there are added.
template <class M, int MT, int NT>
DEVICE void finish_gradient(const float (&sums)[MT][NT][4], u32 out, int tile, int channel,
    bool residual, u64 mask) {
    each_word<M, MT, NT>(out, tile, channel, [&](u32 there, int m, int half, int n) {
        float low = sums[m][n][2 * half], high = sums[m][n][2 * half + 1];
        if (residual) {
            float a, b;
            unpack(read_word(there), a, b);
            low += a;
            high += b;
        }
        write(there, pack(low, high) & select(mask >> bit_of<NT>(m, half, n)));
    });
}

// Gradients that are there, as far as the mask lets them through.
template <class M, int MT, int NT>
DEVICE void apply_mask(u32 out, int tile, int channel, u64 mask) {
    each_word<M, MT, NT>(out, tile, channel, [&](u32 there, int m, int half, int n) {
        write(there, read_word(there) & select(mask >> bit_of<NT>(m, half, n)));
    });
}

// Which of the lane's activations are positive, of an image in device memory as stored by `leave`.
template <class M, int MT, int NT>
DEVICE u64 positive(const u32 *image, int tile, int channel) {
    u64 mask = 0;
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int half = 0; half < 2; half++) {
            int y, x;
            place<M::size>(tile + m, (lane_index() >> 2) + 8 * half, y, x);
            UNROLL for (int n = 0; n < NT; n++) {
                const int pixel = (channel / 8 + n) * M::size * M::size + y * M::size + x;
                const u32 both = image[pixel * 4 + (lane_index() & 3)];
                const u64 bits = (both & 0xffff ? 1 : 0) | (both >> 16 ? 2 : 0);
                mask |= bits << bit_of<NT>(m, half, n);
            }
        }
    }
    return mask;
}

// Gradients into device memory: planes of 8 channels without a border, as `take` reads them.
template <class M, int THREADS>
DEVICE void give(uint4 *image, u32 in, int thread) {
    constexpr int pixels = M::size * M::size;
    UNROLL for (int turn = 0; turn < M::planes * pixels / THREADS; turn++) {
        const int i = turn * THREADS + thread, y = i % pixels / M::size, x = i % M::size;
        image[i] = read_four(in + i / pixels * M::plane + M::at(y + 1, x + 1));
    }
}

// Part of the gradient of a convolution that halves the size, 3x3 or 1x1: at pixels of one parity of rows and
// of columns, from the gradient at MT tiles of its outputs.
template <class In, int SIDE, int MT, int NT>
DEVICE void convolve_up(float (&sums)[MT][NT][4], u32 in, int tile, int odd_y, int odd_x,
    const uint4 *weights) {
    constexpr int depth = In::planes / 2, channels_out = In::channels / 2;
    u32 rows[MT];
    UNROLL for (int m = 0; m < MT; m++) rows[m] = row_of<In, 1, In::size>(in, tile + m);
    // An even pixel meets the middle tap; an odd one the last tap and, of the next output, the first.
    ROLLED for (int y = 0; y < (SIDE == 3 && odd_y ? 2 : 1); y++) {
        ROLLED for (int x = 0; x < (SIDE == 3 && odd_x ? 2 : 1); x++) {
            const int row = SIDE == 1 ? 0 : odd_y ? 2 - 2 * y : 1;
            const int column = SIDE == 1 ? 0 : odd_x ? 2 - 2 * x : 1;
            ROLLED for (int k = 0; k < depth; k++) {
                uint4 b[NT / 2];
                const int tap = (column * depth + k) * SIDE + row;
                UNROLL for (int j = 0; j < NT / 2; j++) {
                    b[j] = load(weights + (tap * (channels_out / 16) + j) * 32 + lane_index());
                }
                UNROLL for (int m = 0; m < MT; m++) {
                    u32 a[4];
                    load_matrices(a, rows[m] + In::at(1 + y, 1 + x) + k * 2 * In::plane);
                    multiply<NT>(sums[m], a, b);
                }
            }
        }
    }
}

// The gradient at the end of a stage, of C channels, from those of the next stage's first convolutions.
template <class In, class Out, int MT>
DEVICE void gradient_at_end(u32 inner_in, u32 outer_in, u32 out, int tile, int parity,
    const uint4 *weights) {
    constexpr int NT = Out::channels / 8;
    const int odd_y = parity >> 1, odd_x = parity & 1;
    float sums[MT][NT][4];
    UNROLL for (int i = 0; i < MT * NT * 4; i++) sums[i / 4 / NT][i / 4 % NT][i % 4] = 0;
    convolve_up<In, 3>(sums, inner_in, tile, odd_y, odd_x, weights);
    if (!parity) {
        convolve_up<In, 1>(sums, outer_in, tile, 0, 0, weights + 9 * In::channels * Out::channels / 8);
    }
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int half = 0; half < 2; half++) {
            int y, x;
            place<In::size>(tile + m, (lane_index() >> 2) + 8 * half, y, x);
            const u32 pixel = out + Out::at(2 * y + odd_y + 1, 2 * x + odd_x + 1);
            UNROLL for (int n = 0; n < NT; n++) {
                write(pixel + (lane_index() & 3) * 4 + n * Out::plane,
                      pack(sums[m][n][2 * half], sums[m][n][2 * half + 1]));
            }
        }
    }
}

template <int MT, int NT>
DEVICE void start_at_zero(float (&sums)[MT][NT][4]) {
    UNROLL for (int i = 0; i < MT * NT * 4; i++) sums[i / 4 / NT][i / 4 % NT][i % 4] = 0;
}

#if STAGE > 1

// Stages 2 and 3 from the end to their second convolution, MT = NT = 4; `first` is the mask of its inputs.
template <class M>
DEVICE void gradient_of_blocks(u32 outer, u32 inner, int tile, int channel, int convolutions,
    const uint4 *weights, const Masks &masks, u64 first) {
    ROLLED for (int i = convolutions - 1; i >= 0; i--) {
        const bool second = !(i & 1);
        float sums[4][4][4];
        start_at_zero<4, 4>(sums);
        convolve<M>(sums, second ? outer : inner, tile, weights + channel / 16 * 32);
        const u64 mask = i ? mask_of(masks, i - 1) : first;
        finish_gradient<M>(sums, second ? inner : outer, tile, channel, !second, mask);
        weights += 9 * M::channels * M::channels / 8;
        barrier();
    }
}

#endif

#if STAGE == 3

// From the gradient in the logits. IMAGES per block, 2 warps each, as in the forward pass.
KERNEL(64 * IMAGES, 8 / IMAGES)
stage3(const float *gradient, const float *linear, int classes, const uint4 *weights, int convolutions,
    const uint2 *masks, const u32 *inner_in, uint4 *inner_out, uint4 *outer_out, unsigned images) {
    using M = Map<64, 8>;
    const int own = thread_index() / 64, thread = thread_index() % 64;
    const int channel = (warp_index() & 1) * 32;
    const size_t image = block_index() * IMAGES + own;
    const size_t taken = image < images ? image : images - 1;  // a surplus image repeats the last one
    const u32 outer = own * 2 * M::bytes, inner = outer + M::bytes;
    const u32 means = IMAGES * 2 * M::bytes + own * 64 * 4;
    const Masks all{masks + taken * convolutions * 64 + thread, 64};

    clear_borders<M>(IMAGES * 16, IMAGES * 64);
    float mean = 0;
    for (int k = 0; k < classes; k++) mean += gradient[taken * classes + k] * linear[thread * classes + k];
    write(means + thread * 4, mean / 64);
    barrier();
    float sums[4][4][4];
    UNROLL for (int i = 0; i < 64; i++) {
        const int n = i / 4 % 4, own_channel = channel + n * 8 + (lane_index() & 3) * 2 + i % 2;
        sums[i / 16][n][i % 4] = read_float(means + own_channel * 4);
    }
    finish_gradient<M>(sums, outer, 0, channel, false, mask_of(all, convolutions - 1));
    barrier();
    const u64 first = positive<M, 4, 4>(inner_in + taken * 2048, 0, channel);
    gradient_of_blocks<M>(outer, inner, 0, channel, convolutions, weights, all, first);
    if (image >= images) return;
    give<M, 64>(inner_out + image * 512, inner, thread);
    give<M, 64>(outer_out + image * 512, outer, thread);
}

#elif STAGE == 2

// From the gradients of stage 3's first convolutions. 4 warps per image.
KERNEL(128, 4)
stage2(const uint4 *inner_next, const uint4 *outer_next, const uint4 *weights, int convolutions,
    const uint2 *masks, const u32 *inner_in, uint4 *inner_out, uint4 *outer_out) {
    using M = Map<32, 16>;
    using Next = Map<64, 8>;
    constexpr u32 outer = 0, inner = M::bytes, next = M::bytes;
    const int tile = warp_index() * 4;
    const Masks all{masks + block_index() * convolutions * 128 + thread_index(), 128};

    for (int i = thread_index(); i < 4 * M::border; i += 128) {
        write(i / M::border * M::plane + M::border_at(i % M::border), uint4{0, 0, 0, 0});
    }
    for (int i = thread_index(); i < 16 * Next::border; i += 128) {
        write(next + i / Next::border * Next::plane + Next::border_at(i % Next::border),
              uint4{0, 0, 0, 0});
    }
    take<Next, 128>(next, inner_next + block_index() * 512, thread_index());
    take<Next, 128>(next + Next::bytes, outer_next + block_index() * 512, thread_index());
    barrier();
    gradient_at_end<Next, M, 4>(next, next + Next::bytes, outer, 0, warp_index(), weights);
    barrier();
    for (int i = thread_index(); i < 4 * M::border; i += 128) {
        write(inner + i / M::border * M::plane + M::border_at(i % M::border), uint4{0, 0, 0, 0});
    }
    apply_mask<M, 4, 4>(outer, tile, 0, mask_of(all, convolutions - 1));
    barrier();
    const u64 first = positive<M, 4, 4>(inner_in + block_index() * 4096, tile, 0);
    weights += 10 * 64 * 32 / 8;
    gradient_of_blocks<M>(outer, inner, tile, 0, convolutions, weights, all, first);
    give<M, 128>(inner_out + block_index() * 1024, inner, thread_index());
    give<M, 128>(outer_out + block_index() * 1024, outer, thread_index());
}

#else

// From the gradients of stage 2's first convolutions to that of the image. 8 warps per image.
KERNEL(256, 2)
stage1(const uint4 *inner_next, const uint4 *outer_next, const uint4 *weights, int convolutions,
    const uint2 *masks, const float *normalize, float *image_out) {
    using M = Map<16, 32>;
    using Next = Map<32, 16>;
    constexpr u32 outer = 0, inner = M::bytes, next = M::bytes;
    const Masks all{masks + block_index() * (convolutions + 1) * 256 + thread_index(), 256};
    // A warp's tiles: 4 rows on the left, and on the right.
    auto tile_of = [](int i) { return i / 4 * 32 + warp_index() * 4 + i % 4; };

    for (int i = thread_index(); i < 2 * M::border; i += 256) {
        write(i / M::border * M::plane + M::border_at(i % M::border), uint4{0, 0, 0, 0});
    }
    for (int i = thread_index(); i < 8 * Next::border; i += 256) {
        write(next + i / Next::border * Next::plane + Next::border_at(i % Next::border),
              uint4{0, 0, 0, 0});
    }
    take<Next, 256>(next, inner_next + block_index() * 1024, thread_index());
    take<Next, 256>(next + Next::bytes, outer_next + block_index() * 1024, thread_index());
    barrier();
    for (int i = 0; i < 2; i++) {
        const int tile = (warp_index() >> 2) * 8 + i * 4;
        gradient_at_end<Next, M, 4>(
            next, next + Next::bytes, outer, tile, warp_index() & 3, weights);
    }
    barrier();
    for (int i = thread_index(); i < 2 * M::border; i += 256) {
        write(inner + i / M::border * M::plane + M::border_at(i % M::border), uint4{0, 0, 0, 0});
    }
    {
        const u64 mask = mask_of(all, convolutions);
        for (int i = 0; i < 8; i++) apply_mask<M, 1, 2>(outer, tile_of(i), 0, mask >> i * 8);
    }
    barrier();
    weights += 10 * 32 * 16 / 8;

    ROLLED for (int i = convolutions - 1; i >= 0; i--) {
        uint4 b[3][3][1];
        UNROLL for (int column = 0; column < 3; column++) {
            load_column<16, 2>(b[column], weights + column * 3 * 32 + lane_index());
        }
        const bool second = i & 1;
        const u64 mask = mask_of(all, i);
        ROLLED for (int k = 0; k < 8; k += ROWS) {
            const int tile = tile_of(k);
            float sums[ROWS][2][4];
            start_at_zero<ROWS, 2>(sums);
            const u32 row = row_of<M, 1, 32>(second ? outer : inner, tile);
            UNROLL for (int column = 0; column < 3; column++) {
                multiply_column<M, ROWS, 2>(sums, row + M::at(0, column), b[column]);
            }
            finish_gradient<M>(sums, second ? inner : outer, tile, 0, !second, mask >> k * 8);
        }
        weights += 9 * 32;
        barrier();
    }

    image_out += block_index() * 3 * 1024;
    ROLLED for (int k = 0; k < 8; k += ROWS) {  // of 16 channels, three are those of the image
        const int tile = tile_of(k);
        float sums[ROWS][2][4];
        start_at_zero<ROWS, 2>(sums);
        convolve<M>(sums, outer, tile, weights);
        UNROLL for (int i = 0; i < ROWS * 4; i++) {
            int y, x;
            place<32>(tile + i / 4, (lane_index() >> 2) + i % 4 / 2 * 8, y, x);
            const int channel = (lane_index() & 3) * 2 + i % 2;
            if (channel < 3) {
                image_out[channel * 1024 + y * 32 + x] = sums[i / 4][0][i % 4] * normalize[3 + channel];
            }
        }
    }
}

#endif
