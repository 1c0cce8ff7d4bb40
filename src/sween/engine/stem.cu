// The stem of an ImageNet-style ResNet in one pass over the images: normalisation, a 7x7 convolution with stride 2
// from 3 to 64 channels, bias, relu, and a 3x3 max pool with stride 2.
//
// Follows convolution.cu. A block has BAND rows of the output, over the whole width, and goes down the image: a
// step takes two rows of the convolution, of which each warp has 16 columns. Rows of the image are kept in shared
// memory as float16, 4 channels (one is 0) a pixel, in a ring of 16 rows. Neighbouring windows are 2 pixels, 16
// bytes, apart, so a row of the ring itself is the matrix (windows x their 8 pixels), each row of which overlaps the
// next: 8 of its rows are 128 consecutive bytes, and nothing need be copied into another order. A window has 7
// pixels; the weight of its first pixel here, the eighth, is 0 (a NaN there still spreads).
//
// Compile with HEIGHT and WIDTH of the images (WIDTH a multiple of 32, HEIGHT of 4) and BAND.

#ifndef SWEEN_EMULATED

DEVICE void write(u32 offset, uint2 value) { *reinterpret_cast<uint2 *>(shared + offset) = value; }

#endif

constexpr int kColumns = WIDTH / 2, kOutputs = WIDTH / 4, kRows = HEIGHT / 4, kChannels = 64;
constexpr int kThreads = WIDTH;  // a warp has 16 columns of the convolution
constexpr int kBands = (kRows + BAND - 1) / BAND;

constexpr int kRing = 16;
constexpr u32 kPitch = (WIDTH + 8) * 8;       // of a row of the ring: 4 pixels before the image and 4 behind it
constexpr u32 kMaxima = kRing * kPitch;       // two buffers of maxima over rows
constexpr u32 kPixel = kChannels * 2 + 16;    // of a pixel in them: without bank conflicts
constexpr u32 kWeights = kMaxima + 2 * kColumns * kPixel;
constexpr int kSteps = 14;                    // of 16 products: 7 rows of 8 pixels of 4 channels
static_assert(kWeights + kSteps * 4 * 32 * 16 == STEM_SHARED_BYTES, "stem.py computes it too");

// Where row y of the image is in the ring; y >= -16.
DEVICE u32 ring_row(int y) { return ((y + kRing) % kRing) * kPitch; }

// The larger of two float16 that are not negative, twice: as numbers of 16 bits they have the same order. A -0 is
// the smallest of these, and NaN the largest.
DEVICE u32 larger(u32 a, u32 b) {
    const int low = static_cast<short>(a), other = static_cast<short>(b);
    const int high = static_cast<int>(a) >> 16, another = static_cast<int>(b) >> 16;
    return (static_cast<u32>(low > other ? low : other) & 0xffff) |
        static_cast<u32>(high > another ? high : another) << 16;
}

// Three channels of a pixel of row y, normalised; 0 outside the image.
DEVICE void fetch(float (&pixel)[3], const float *image, const float *affine, int y) {
    UNROLL for (int c = 0; c < 3; c++) {
        const bool inside = y >= 0 && y < HEIGHT;
        const float value = inside ? image[(c * HEIGHT + y) * WIDTH + thread_index()] : 0;
        pixel[c] = inside ? value * affine[c] + affine[3 + c] : 0;
    }
}

DEVICE void keep(const float (&pixel)[3], int y) {
    write(ring_row(y) + (thread_index() + 4) * 8, uint2{pack(pixel[0], pixel[1]), pack(pixel[2], 0)});
}

// MT consecutive rows of the convolution from row y on, of the warp's 16 columns and all channels.
template <int MT>
DEVICE void convolve(u32 (&outputs)[MT][8][2], const float *bias, int y) {
    float sums[MT][8][4];
    start<MT, 8>(sums, bias);
    const int lane = lane_index();
    const u32 place = ((warp_index() * 16 + (lane & 15)) + (lane >> 4)) * 16;
    ROLLED for (int row = 0; row < 7; row++) {
        UNROLL for (int half = 0; half < 2; half++) {
            u32 a[MT][4];
            UNROLL for (int m = 0; m < MT; m++) {
                load_matrices(a[m], ring_row(2 * (y + m) - 3 + row) + place + half * 32);
            }
            UNROLL for (int pair = 0; pair < 4; pair++) {
                const uint4 b = read_four(kWeights + (((row * 2 + half) * 4 + pair) * 32 + lane) * 16);
                UNROLL for (int m = 0; m < MT; m++) {
                    multiply_add(sums[m][pair * 2], a[m], b.x, b.y);
                    multiply_add(sums[m][pair * 2 + 1], a[m], b.z, b.w);
                }
            }
        }
    }
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int n = 0; n < 8; n++) {
            UNROLL for (int i = 0; i < 2; i++) {
                outputs[m][n][i] = pack_relu(sums[m][n][i * 2], sums[m][n][i * 2 + 1]);
            }
        }
    }
}

// images (N, 3, HEIGHT, WIDTH) float32; affine: factor and summand of each channel; weights in the order of stem.py;
// out (N, HEIGHT / 4, WIDTH / 4, 64) float16.
KERNEL(kThreads, kThreads > 256 ? 1 : 2)
stem(const float *images, const float *affine, const uint4 *weights, const float *bias, uint4 *out) {
    const size_t number = block_index() / kBands;
    const int first = block_index() % kBands * BAND;
    const int last = first + BAND < kRows ? first + BAND : kRows;
    images += number * (3 * HEIGHT * WIDTH);
    out += number * (kRows * kOutputs * 8);

    for (int i = thread_index(); i < kSteps * 4 * 32; i += kThreads) write(kWeights + i * 16, load(weights + i));
    for (int i = thread_index(); i < kRing * 8; i += kThreads) {
        const int x = i % 8 < 4 ? i % 8 : WIDTH + i % 8;
        write(i / 8 * kPitch + x * 8, uint2{0, 0});
    }
    ROLLED for (int y = 4 * first - 7; y < 4 * first + 6; y++) {
        float pixel[3];
        fetch(pixel, images, affine, y);
        keep(pixel, y);
    }
    barrier();

    // The row of the convolution above the first step's.
    u32 above[1][8][2];
    UNROLL for (int i = 0; i < 16; i++) above[0][i / 2][i % 2] = 0;
    if (first > 0) convolve<1>(above, bias, 2 * first - 1);

    ROLLED for (int row = first; row < last; row++) {
        float next[4][3];
        UNROLL for (int i = 0; i < 4; i++) fetch(next[i], images, affine, 4 * row + 6 + i);
        u32 rows[2][8][2];
        convolve<2>(rows, bias, 2 * row);
        const u32 maxima = kMaxima + row % 2 * (kColumns * kPixel);
        UNROLL for (int n = 0; n < 8; n++) {
            UNROLL for (int i = 0; i < 2; i++) {
                const int column = warp_index() * 16 + (lane_index() >> 2) + i * 8;
                const u32 largest = larger(above[0][n][i], larger(rows[0][n][i], rows[1][n][i]));
                write(maxima + column * kPixel + n * 16 + (lane_index() & 3) * 4, largest);
                above[0][n][i] = rows[1][n][i];
            }
        }
        UNROLL for (int i = 0; i < 4; i++) keep(next[i], 4 * row + 6 + i);
        barrier();

        // What the next step writes, nobody reads before its barrier.
        UNROLL for (int k = thread_index(); k < kOutputs * 8; k += kThreads) {
            const int column = k / 8 * 2;
            const u32 from = maxima + column * kPixel + k % 8 * 16;
            const uint4 middle = read_four(from), right = read_four(from + kPixel);
            const uint4 left = column > 0 ? read_four(from - kPixel) : middle;
            out[row * (kOutputs * 8) + k] = uint4{
                larger(left.x, larger(middle.x, right.x)), larger(left.y, larger(middle.y, right.y)),
                larger(left.z, larger(middle.z, right.z)), larger(left.w, larger(middle.w, right.w))};
        }
    }
}
