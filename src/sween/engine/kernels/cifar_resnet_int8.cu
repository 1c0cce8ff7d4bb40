// The forward pass of the CIFAR ResNets in 8-bit integers: three kernels like those of cifar_resnet.cu.
//
// Convolutions multiply bytes, 0 to 255, by weights of -127 to 127. Their sums are whole numbers, so
// their order does not matter, and every other operation is rounded as IEEE 754 says: quantized.py
// computes the same logits, bit for bit. What shortcuts carry is float16.
//
// A sum starts from the bits of MAGIC plus the bias. As long as it stays within 2^22 of that, which
// quantized.py ensures, its bits are those of the float MAGIC + sum: no conversion is needed. Likewise a
// float16 between 1024 and 2048 has its whole part in its low bits.
//
// Bytes are in planes of 16 channels; float16 values in planes of 16 channels without a border. The
// order of weights (packing_int8.py) gives a lane four consecutive channels of two tiles. `constants` has
// three rows per convolution: how sums start, their scales, and in the first place of the third row
// the factor from activations to the unit interval whose 255 steps are the next layer's bytes, twice
// in float16.
//
// Follows convolution.cu. Compile with the definitions of cifar_resnet.cu.

#ifndef SWEEN_EMULATED

DEVICE uint2 read_pair(u32 offset) { return *reinterpret_cast<uint2 *>(shared + offset); }
DEVICE void write(u32 offset, uint2 value) { *reinterpret_cast<uint2 *>(shared + offset) = value; }

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }

// Rounded once each, and never joined by the compiler.
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE float times_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float clamp(float value) { return __saturatef(value); }  // to [0, 1]

// Pairs of float16.
DEVICE u32 add_relu(u32 a, u32 b) {
    u32 both;
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(a), "r"(0x3c003c00), "r"(b));
    return both;
}
DEVICE u32 times_clamp(u32 a, u32 b) {
    u32 both;
    asm("mul.rn.sat.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
    return both;
}

// Two pairs of the unit interval times 255, rounded to four bytes: a * 255 + 1024 in float16.
DEVICE u32 to_bytes(u32 low, u32 high) {
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(low) : "r"(0x5bf85bf8), "r"(0x64006400));
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(high) : "r"(0x5bf85bf8), "r"(0x64006400));
    return __byte_perm(low, high, 0x6420);
}

#endif

constexpr float MAGIC = 12582912;  // 1.5 * 2^23: neighbouring floats are 1 apart
constexpr u32 FLOAT_PIXEL = 32;    // bytes of a pixel in a plane of float16 values

template <int C, int S>
using Bytes = Map<C, S, 16>;

// Four constants of the lane's channels in each plane of 16.
template <int PAIRS>
DEVICE void load_own(u32 (&own)[PAIRS][4], const uint4 *row, int channel) {
    UNROLL for (int j = 0; j < PAIRS; j++) {
        const uint4 four = load(row + (channel / 16 + j) * 4 + (lane_index() & 3));
        own[j][0] = four.x, own[j][1] = four.y, own[j][2] = four.z, own[j][3] = four.w;
    }
}

template <int MT, int NT>
DEVICE void start(u32 (&sums)[MT][NT][4], const u32 (&from)[NT / 2][4]) {
    UNROLL for (int i = 0; i < MT * NT * 4; i++) {
        const int m = i / 4 / NT, n = i / 4 % NT;
        sums[m][n][i % 4] = from[n / 2][n % 2 * 2 + i % 2];
    }
}

// What a convolution makes of its sums, for the lane's own channels.
template <int PAIRS>
struct Scales {
    u32 own[PAIRS][4], next;
};

template <int C, int PAIRS>
DEVICE void load_scales(Scales<PAIRS> &scales, const uint4 *constants, int channel) {
    load_own(scales.own, constants + C / 4, channel);
    scales.next = load(constants + C / 2).x;
}

// The sum times its scale, rounded once: scales have two bits less than a float, so that their
// product with MAGIC is exact.
DEVICE float scaled(u32 sum, u32 scale) {
    return times_add(as_float(sum), as_float(scale), -MAGIC * as_float(scale));
}

// A lane's four scaled sums of plane j and one of its two pixels, as float16.
template <int NT>
DEVICE uint2 branch(const u32 (&sums)[NT][4], const Scales<NT / 2> &scales, int j, int half) {
    float value[4];
    UNROLL for (int k = 0; k < 4; k++) {
        value[k] = scaled(sums[2 * j + k / 2][2 * half + k % 2], scales.own[j][k]);
    }
    return uint2{pack(value[0], value[1]), pack(value[2], value[3])};
}

// The same through relu as bytes; the factor for the next layer is in the scales.
template <int NT>
DEVICE u32 inner_bytes(const u32 (&sums)[NT][4], const Scales<NT / 2> &scales, int j, int half) {
    float unit[4];
    UNROLL for (int k = 0; k < 4; k++) {
        unit[k] = clamp(scaled(sums[2 * j + k / 2][2 * half + k % 2], scales.own[j][k]));
    }
    return to_bytes(pack(unit[0], unit[1]), pack(unit[2], unit[3]));
}

// Where the i-th pixel that a lane has of consecutive tiles is, from its first one.
template <int S>
struct Away {
    MEMBER int y(int i) { return i / 2 + (S == 8 ? i % 2 * 4 : 0); }
    MEMBER int x(int i) { return S == 8 ? 0 : i % 2 * 8; }
};

// Sums through relu into the bytes at `out`; (y, x) is the lane's first pixel.
template <class Out, int MT, int NT>
DEVICE void finish_inner(const u32 (&sums)[MT][NT][4], const Scales<NT / 2> &scales, u32 out, int y,
    int x, int channel) {
    using A = Away<Out::size>;
    out += Out::at(y + 1, x + 1) + (lane_index() & 3) * 4 + channel / 16 * Out::plane;
    UNROLL for (int j = 0; j < NT / 2; j++) {
        UNROLL for (int i = 0; i < 2 * MT; i++) {
            const u32 bytes = inner_bytes(sums[i / 2], scales, j, i % 2);
            write(out + Out::at(A::y(i), A::x(i)) + j * Out::plane, bytes);
        }
    }
}

// Sums through relu into the float16 values at `kept`, which are added first with `residual`, and
// into the bytes at `out`.
template <class Out, int MT, int NT>
DEVICE void finish_outer(const u32 (&sums)[MT][NT][4], const Scales<NT / 2> &scales, u32 out,
    u32 kept, int y, int x, int channel, bool residual) {
    using A = Away<Out::size>;
    constexpr u32 plane = Out::size * Out::size * FLOAT_PIXEL;
    out += Out::at(y + 1, x + 1) + (lane_index() & 3) * 4 + channel / 16 * Out::plane;
    kept += (y * Out::size + x) * FLOAT_PIXEL + (lane_index() & 3) * 8 + channel / 16 * plane;
    UNROLL for (int j = 0; j < NT / 2; j++) {
        UNROLL for (int i = 0; i < 2 * MT; i++) {
            const u32 own = kept + (A::y(i) * Out::size + A::x(i)) * FLOAT_PIXEL + j * plane;
            const uint2 more = branch(sums[i / 2], scales, j, i % 2);
            uint2 all = residual ? read_pair(own) : uint2{0, 0};
            all = uint2{add_relu(more.x, all.x), add_relu(more.y, all.y)};
            write(own, all);
            const u32 low = times_clamp(all.x, scales.next), high = times_clamp(all.y, scales.next);
            write(out + Out::at(A::y(i), A::x(i)) + j * Out::plane, to_bytes(low, high));
        }
    }
}

// Sums into device memory: bytes through relu, or float16 values without.
template <int S, bool BYTES, int MT, int NT>
DEVICE void leave(const u32 (&sums)[MT][NT][4], const Scales<NT / 2> &scales, u32 *image, int tile,
    int channel) {
    using A = Away<S>;
    int y, x;
    place<S>(tile, lane_index() >> 2, y, x);
    const int first = (channel / 16 * S * S + y * S + x) * 4 + (lane_index() & 3);
    UNROLL for (int j = 0; j < NT / 2; j++) {
        UNROLL for (int i = 0; i < 2 * MT; i++) {
            const int own = first + (j * S * S + A::y(i) * S + A::x(i)) * 4;
            if (BYTES) {
                image[own] = inner_bytes(sums[i / 2], scales, j, i % 2);
            } else {
                reinterpret_cast<uint2 *>(image)[own] = branch(sums[i / 2], scales, j, i % 2);
            }
        }
    }
}

// Float16 values of one image from device memory, as stored by `leave`.
template <class M, int THREADS>
DEVICE void take_floats(u32 out, const uint4 *image, int thread) {
    constexpr int turns = M::channels * M::size * M::size * 2 / 16 / THREADS;
    uint4 own[turns];
    UNROLL for (int turn = 0; turn < turns; turn++) own[turn] = load(image + turn * THREADS + thread);
    UNROLL for (int turn = 0; turn < turns; turn++) {
        write(out + (turn * THREADS + thread) * 16, own[turn]);
    }
}

#if STAGE == 1

// With 16 channels two taps share a product: those of columns 0 and 1 in each row, then rows 0 and 1 of
// column 2, and row 2 of column 2 with weights of 0 for the other half.
constexpr int PAIRS_OF_TAPS = 5;

DEVICE u32 upper_half(u32 offset) { return lane_index() < 16 ? 0 : offset; }

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
        u32 tap = In::at(pair, 0) + upper_half(In::at(0, 1));
        if (pair == 3) tap = In::at(0, 2) + upper_half(In::at(1, 0));
        if (pair == 4) tap = In::at(2, 2);
        if (SIDE == 1) tap = In::at(1, 1);
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
    const float *image = images + chosen * 3 * 1024;
    float pixels[4][3];
    UNROLL for (int i = 0; i < 12; i++) {
        pixels[i / 3][i % 3] = image[i % 3 * 1024 + i / 3 * 256 + thread_index()];
    }
    UNROLL for (int k = 0; k < 4; k++) {
        const int i = k * 256 + thread_index();
        float above[3], below[3];
        UNROLL for (int c = 0; c < 3; c++) {
            const float unit = times(add(pixels[k][c], -normalize[c]), normalize[3 + c]);
            above[c] = clamp(unit);
            below[c] = clamp(-unit);
        }
        const u32 low = to_bytes(pack(above[0], above[1]), pack(above[2], below[0]));
        const u32 high = to_bytes(pack(below[1], below[2]), 0);
        write(inner + M::at(i / 32 + 1, i % 32 + 1), uint4{low, high, 0, 0});
    }
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
