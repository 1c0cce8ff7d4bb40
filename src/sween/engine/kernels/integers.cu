// Convolutions in 8-bit integers: what becomes of their sums.
//
// Convolutions multiply bytes, 0 to 255, by weights of -127 to 127. Their sums are whole numbers, so
// their order does not matter, and every other operation is rounded as IEEE 754 says: quantized.py
// computes the same logits, bit for bit. What shortcuts carry is float16.
//
// Bytes are in planes of 16 channels; float16 values in planes of 16 channels without a border. The
// order of weights (packing_int8.py) gives a lane four consecutive channels of two tiles. `constants` has
// three rows per convolution: how sums start, their scales, and in the first place of the third row
// the factor from activations to the unit interval whose 255 steps are the next layer's bytes, twice
// in float16.
//
// Follows convolution.cu. With WIDE, sums are whole numbers of less than 2^24. Without, they start from
// the bits of MAGIC plus the bias: as long as they stay within 2^22 of that, which quantized.py ensures,
// their bits are those of the float MAGIC + sum, and no conversion is needed. Likewise a float16 between
// 1024 and 2048 has its whole part in its low bits.

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

// The sum times its scale, rounded once.
DEVICE float scaled(u32 sum, u32 scale) {
#ifdef WIDE
    return times(static_cast<float>(static_cast<int>(sum)), as_float(scale));
#else  // scales have two bits less than a float, so that their product with MAGIC is exact
    return times_add(as_float(sum), as_float(scale), -MAGIC * as_float(scale));
#endif
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

// Four float16 values of shared memory, or of device memory.
DEVICE uint2 get(u32 place) { return read_pair(place); }
DEVICE uint2 get(const uint2 *place) { return *place; }
DEVICE void put(u32 place, uint2 four) { write(place, four); }
DEVICE void put(uint2 *place, uint2 four) { *place = four; }
DEVICE u32 move(u32 place, int fours) { return place + fours * 8; }
DEVICE uint2 *move(uint2 *place, int fours) { return place + fours; }

// Sums through relu into the float16 values at `kept`, which are added first with `residual`, and
// into the bytes at `out`.
template <class Out, int MT, int NT, class Place>
DEVICE void finish_outer(const u32 (&sums)[MT][NT][4], const Scales<NT / 2> &scales, u32 out,
    Place kept, int y, int x, int channel, bool residual) {
    using A = Away<Out::size>;
    constexpr int plane = Out::size * Out::size * 4;
    out += Out::at(y + 1, x + 1) + (lane_index() & 3) * 4 + channel / 16 * Out::plane;
    kept = move(kept, (y * Out::size + x) * 4 + (lane_index() & 3) + channel / 16 * plane);
    UNROLL for (int j = 0; j < NT / 2; j++) {
        UNROLL for (int i = 0; i < 2 * MT; i++) {
            const Place own = move(kept, (A::y(i) * Out::size + A::x(i)) * 4 + j * plane);
            const uint2 more = branch(sums[i / 2], scales, j, i % 2);
            uint2 all = residual ? get(own) : uint2{0, 0};
            all = uint2{add_relu(more.x, all.x), add_relu(more.y, all.y)};
            put(own, all);
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

// With 16 channels two taps share a product: those of columns 0 and 1 in each row, then rows 0 and 1 of
// column 2, and row 2 of column 2 with weights of 0 for the other half.
constexpr int PAIRS_OF_TAPS = 5;

DEVICE u32 upper_half(u32 offset) { return lane_index() < 16 ? 0 : offset; }

// Where a lane reads a pair of taps, from the first tap.
template <class In>
DEVICE u32 taps_of(int pair) {
    if (pair == 3) return In::at(0, 2) + upper_half(In::at(1, 0));
    if (pair == 4) return In::at(2, 2);
    return In::at(pair, 0) + upper_half(In::at(0, 1));
}

// Bytes of the normalised pixels of an image, into the first plane of a map: above the mean, and below it.
template <class M, int THREADS>
DEVICE void take_pixels(u32 out, const float *image, const float *normalize) {
    constexpr int turns = 1024 / THREADS;
    float pixels[turns][3];
    UNROLL for (int i = 0; i < turns * 3; i++) {
        pixels[i / 3][i % 3] = image[i % 3 * 1024 + i / 3 * THREADS + thread_index()];
    }
    UNROLL for (int k = 0; k < turns; k++) {
        const int i = k * THREADS + thread_index();
        float above[3], below[3];
        UNROLL for (int c = 0; c < 3; c++) {
            const float unit = times(add(pixels[k][c], -normalize[c]), normalize[3 + c]);
            above[c] = clamp(unit);
            below[c] = clamp(-unit);
        }
        const u32 low = to_bytes(pack(above[0], above[1]), pack(above[2], below[0]));
        const u32 high = to_bytes(pack(below[1], below[2]), 0);
        write(out + M::at(i / 32 + 1, i % 32 + 1), uint4{low, high, 0, 0});
    }
}
