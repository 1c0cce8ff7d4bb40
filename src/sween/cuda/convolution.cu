// Convolutions on tensor cores, from and to activations in shared memory.
//
// Activations of one image: planes of 8 channels, a plane row by row with a border of zeros, so that
// 8 neighbouring pixels of a plane are 128 consecutive bytes and accesses are free of bank conflicts
// (but for those of a convolution that halves the size). A convolution is a sum over its taps of
// products (pixels x channels) * (channels x channels); a warp takes tiles of 16 pixels by 8 channels.
// Weights come in the order in which the lanes need them (packing.py), through the L1 cache.
//
// Activations and weights are float16, or bfloat16 with BRAIN.
//
// With SWEEN_EMULATED the primitives come from an emulator: this is how the tests run on a CPU.

#ifndef SWEEN_EMULATED

typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef BRAIN
#define HALF "bf16"
#else
#define HALF "f16"
#endif

#define DEVICE static __device__ __forceinline__
#define MEMBER static __device__ __forceinline__
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

extern __shared__ __align__(128) unsigned char shared[];

DEVICE int thread_index() { return threadIdx.x; }
DEVICE size_t block_index() { return blockIdx.x; }
DEVICE void barrier() { __syncthreads(); }

// Shared memory, at an offset in bytes.
DEVICE u32 read_word(u32 offset) { return *reinterpret_cast<u32 *>(shared + offset); }
DEVICE float read_float(u32 offset) { return *reinterpret_cast<float *>(shared + offset); }
DEVICE uint4 read_four(u32 offset) { return *reinterpret_cast<uint4 *>(shared + offset); }
DEVICE void write(u32 offset, u32 value) { *reinterpret_cast<u32 *>(shared + offset) = value; }
DEVICE void write(u32 offset, float value) { *reinterpret_cast<float *>(shared + offset) = value; }
DEVICE void write(u32 offset, uint4 value) { *reinterpret_cast<uint4 *>(shared + offset) = value; }

// 16 bytes from device memory, while the thread goes on.
DEVICE void copy(u32 offset, const uint4 *from) {
    u32 address = static_cast<u32>(__cvta_generic_to_shared(shared)) + offset;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(address), "l"(from) : "memory");
}
DEVICE void copied() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// Four 8x8 matrices of float16; lane 8 i + r names the 16 bytes of row r of matrix i.
DEVICE void load_matrices(u32 (&a)[4], u32 offset) {
    u32 address = static_cast<u32>(__cvta_generic_to_shared(shared)) + offset;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address));
}

// sum (16x8, float32) += a (16x16) * b (16x8)
DEVICE void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sum (16x8, int32) += a (16x32, unsigned bytes) * b (32x8, signed bytes)
DEVICE void multiply_add(u32 (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn." HALF "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Rounded to float16 with negatives set to 0; NaN is preserved.
DEVICE u32 pack_relu(float low, float high) {
    u32 both;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE void unpack(u32 both, float &low, float &high) {
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(both));
}

DEVICE uint4 load(const uint4 *where) { return __ldg(where); }
DEVICE uint2 load(const uint2 *where) { return __ldg(where); }
DEVICE u32 load(const u32 *where) { return __ldg(where); }

// The sum over the lanes of a warp, all of which call it, the same in each of them.
DEVICE float sum_of_warp(float value) {
    for (int apart = 16; apart; apart /= 2) value += __shfl_xor_sync(0xffffffff, value, apart);
    return value;
}

#endif

#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")  // unrolled, the weights of all iterations would fill the registers

DEVICE int lane_index() { return thread_index() & 31; }
DEVICE int warp_index() { return thread_index() >> 5; }

// Activations of one image in shared memory: C channels of S x S pixels and their border. A pixel has 16
// bytes in each plane, of as many channels as they hold.
template <int C, int S, int PER_PLANE = 8>
struct Map {
    static constexpr int channels = C, size = S, width = S + 2, planes = C / PER_PLANE;
    static constexpr int plane = width * width * 16;  // bytes
    static constexpr int bytes = planes * plane;
    static constexpr int border = width * width - S * S;  // pixels

    MEMBER u32 at(int y, int x) { return (y * width + x) * 16; }

    // The i-th pixel of the border: top row, bottom row, then left and right.
    MEMBER u32 border_at(int i) {
        if (i < width) return at(0, i);
        if (i < 2 * width) return at(S + 1, i - width);
        int side = i - 2 * width;
        return at(1 + (side >> 1), (side & 1) * (S + 1));
    }
};

// Pixel p of 16 in a tile of an S x S output. Consecutive tiles are one row apart.
template <int S>
DEVICE void place(int tile, int p, int &y, int &x) {
    if (S == 8) {  // rows y and y + 4
        y = tile + p / 8 * 4;
        x = p % 8;
    } else {
        y = tile % S;
        x = tile / S * 16 + p;
    }
}

// Where a lane reads its row of a tile's matrices: pixels 0-7 and 8-15 of one plane, then the next.
template <class In, int STRIDE, int SIZE_OUT>
DEVICE u32 row_of(u32 in, int tile) {
    int y, x, lane = lane_index();
    place<SIZE_OUT>(tile, lane & 15, y, x);
    return in + (lane >> 4) * In::plane + In::at(y * STRIDE, x * STRIDE);
}

template <int MT, int NT>
DEVICE void start(float (&sums)[MT][NT][4], const float *bias) {
    UNROLL for (int n = 0; n < NT; n++) {
        const float *own = bias + n * 8 + (lane_index() & 3) * 2;
        UNROLL for (int m = 0; m < MT; m++) {
            sums[m][n][0] = sums[m][n][2] = own[0];
            sums[m][n][1] = sums[m][n][3] = own[1];
        }
    }
}

// sums += 16 pixels by 16 channels, times the weights of NT tiles of channels.
template <int NT, class Sum>
DEVICE void multiply(Sum (&sums)[NT][4], const u32 (&a)[4], const uint4 (&b)[NT / 2]) {
    UNROLL for (int j = 0; j < NT / 2; j++) {
        multiply_add(sums[2 * j], a, b[j].x, b[j].y);
        multiply_add(sums[2 * j + 1], a, b[j].z, b[j].w);
    }
}

// One column of three taps and two planes of input channels, for MT tiles a row apart, from the lane's own row.
// A row of pixels is read once, for all the tiles whose taps touch it.
template <class In, int MT, int NT, class Sum>
DEVICE void multiply_column(Sum (&sums)[MT][NT][4], u32 row, const uint4 (&b)[3][NT / 2]) {
    UNROLL for (int y = 0; y < MT + 2; y++) {
        u32 a[4];
        load_matrices(a, row + In::at(y, 0));
        UNROLL for (int tap = 0; tap < 3; tap++) {
            if (y - tap >= 0 && y - tap < MT) multiply<NT>(sums[y - tap], a, b[tap]);
        }
    }
}

template <int CHANNELS_OUT, int NT>
DEVICE void load_column(uint4 (&b)[3][NT / 2], const uint4 *own) {
    UNROLL for (int tap = 0; tap < 3; tap++) {
        UNROLL for (int j = 0; j < NT / 2; j++) {
            b[tap][j] = load(own + (tap * (CHANNELS_OUT / 16) + j) * 32);
        }
    }
}

// A 3x3 convolution that keeps the size; the weights are those of the first channel wanted.
template <class In, int MT, int NT, class Sum>
DEVICE void convolve(Sum (&sums)[MT][NT][4], u32 in, int tile, const uint4 *weights) {
    const u32 row = row_of<In, 1, In::size>(in, tile);
    const uint4 *own = weights + lane_index();
    ROLLED for (int column = 0; column < 3; column++) {
        ROLLED for (int k = 0; k < In::planes / 2; k++) {
            uint4 b[3][NT / 2];
            load_column<In::channels, NT>(b, own);
            multiply_column<In, MT, NT>(sums, row + In::at(0, column) + k * 2 * In::plane, b);
            own += 3 * (In::channels / 16) * 32;
        }
    }
}

// A 3x3 or 1x1 convolution that halves the size and, unless told otherwise, doubles the channels.
template <class In, int SIDE, int CHANNELS_OUT = In::channels * 2, int MT, int NT, class Sum>
DEVICE void convolve_down(Sum (&sums)[MT][NT][4], u32 in, int tile, const uint4 *weights) {
    u32 rows[MT];
    UNROLL for (int m = 0; m < MT; m++) {
        rows[m] = row_of<In, 2, In::size / 2>(in, tile + m) + (SIDE == 3 ? 0 : In::at(1, 1));
    }
    const uint4 *own = weights + lane_index();
    ROLLED for (int column = 0; column < SIDE; column++) {
        UNROLL for (int k = 0; k < In::planes / 2; k++) {
            UNROLL for (int tap = 0; tap < SIDE; tap++) {
                uint4 b[NT / 2];
                UNROLL for (int j = 0; j < NT / 2; j++) b[j] = load(own + j * 32);
                UNROLL for (int m = 0; m < MT; m++) {
                    u32 a[4];
                    load_matrices(a, rows[m] + In::at(tap, column) + k * 2 * In::plane);
                    multiply<NT>(sums[m], a, b);
                }
                own += CHANNELS_OUT / 16 * 32;
            }
        }
    }
}

// The first of the two bits of a lane's sums in its mask of at most 64.
template <int NT>
DEVICE int bit_of(int m, int half, int n) {
    return ((m * 2 + half) * NT + n) * 2;
}

// Sums into the activations at `out`, through relu; with `residual` those that are there are added. With MASKS,
// returns which of the lane's sums are positive.
template <class Out, int MT, int NT>
DEVICE u64 finish(const float (&sums)[MT][NT][4], u32 out, int tile, int channel, bool residual) {
    u64 positive = 0;
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int half = 0; half < 2; half++) {
            int y, x;
            place<Out::size>(tile + m, (lane_index() >> 2) + 8 * half, y, x);
            u32 pixel = out + Out::at(y + 1, x + 1) + (lane_index() & 3) * 4;
            UNROLL for (int n = 0; n < NT; n++) {
                float low = sums[m][n][2 * half], high = sums[m][n][2 * half + 1];
                const u32 there = pixel + (channel / 8 + n) * Out::plane;
                if (residual) {
                    float a, b;
                    unpack(read_word(there), a, b);
                    low += a;
                    high += b;
                }
                write(there, pack_relu(low, high));
#ifdef MASKS
                positive |= static_cast<u64>((low > 0) | (high > 0) << 1) << bit_of<NT>(m, half, n);
#endif
            }
        }
    }
    return positive;
}

// Sums into device memory: planes of 8 channels without a border.
template <int S, int MT, int NT>
DEVICE void leave(const float (&sums)[MT][NT][4], u32 *image, int tile, int channel, bool relu) {
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int half = 0; half < 2; half++) {
            int y, x;
            place<S>(tile + m, (lane_index() >> 2) + 8 * half, y, x);
            UNROLL for (int n = 0; n < NT; n++) {
                float low = sums[m][n][2 * half], high = sums[m][n][2 * half + 1];
                image[((channel / 8 + n) * S * S + y * S + x) * 4 + (lane_index() & 3)] =
                    relu ? pack_relu(low, high) : pack(low, high);
            }
        }
    }
}

template <class M>
DEVICE void clear_borders(int planes, int threads) {
    for (int i = thread_index(); i < planes * M::border; i += threads) {
        write(i / M::border * M::plane + M::border_at(i % M::border), uint4{0, 0, 0, 0});
    }
}

// One image's activations from device memory, as stored by `leave`; all loads are in flight at once.
template <class M, int THREADS>
DEVICE void take(u32 out, const uint4 *image, int thread) {
    constexpr int pixels = M::size * M::size, turns = M::planes * pixels / THREADS;
    uint4 own[turns];
    UNROLL for (int turn = 0; turn < turns; turn++) own[turn] = load(image + turn * THREADS + thread);
    UNROLL for (int turn = 0; turn < turns; turn++) {
        int i = turn * THREADS + thread, y = i % pixels / M::size, x = i % M::size;
        write(out + i / pixels * M::plane + M::at(y + 1, x + 1), own[turn]);
    }
}
