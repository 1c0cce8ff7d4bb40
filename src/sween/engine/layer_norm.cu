// Layer norm over the channels of each row, in float16 with sums in float32.
//
// Follows convolution.cu. A warp has ROWS rows at once; a lane 4 channels in each of PER_LANE vectors. torch's own
// kernel has a block for a row, most of which waits where rows are short. Compile with CHANNELS, a multiple of 4,
// PER_LANE and ROWS.

constexpr int kThreads = 256;
constexpr int VECTORS = CHANNELS / 4;

// x, out (rows, CHANNELS) float16; affine (2, CHANNELS) and epsilon (1) float32: factors, then summands.
KERNEL(kThreads, PER_LANE > 8 ? 2 : 4)
layer_norm(const uint2 *x, const float *affine, const float *epsilon, uint2 *out, int rows) {
    const int first = (static_cast<int>(block_index()) * (kThreads / 32) + warp_index()) * ROWS;
    if (first >= rows) return;  // all lanes of a warp
    float values[ROWS][PER_LANE][4];
    UNROLL for (int row = 0; row < ROWS; row++) {
        UNROLL for (int i = 0; i < PER_LANE; i++) {
            const int vector = i * 32 + lane_index();
            uint2 four = {0, 0};
            if (vector < VECTORS && first + row < rows) {
                four = load(x + static_cast<size_t>(first + row) * VECTORS + vector);
            }
            unpack(four.x, values[row][i][0], values[row][i][1]);
            unpack(four.y, values[row][i][2], values[row][i][3]);
        }
    }
    float means[ROWS], factors[ROWS];
    UNROLL for (int row = 0; row < ROWS; row++) {
        float sum = 0;
        UNROLL for (int i = 0; i < PER_LANE * 4; i++) sum += values[row][i / 4][i % 4];
        means[row] = sum_of_warp(sum) / CHANNELS;
        float squares = 0;
        UNROLL for (int i = 0; i < PER_LANE * 4; i++) {
            const float apart = values[row][i / 4][i % 4] - means[row];
            if (i / 4 * 32 + lane_index() < VECTORS) squares += apart * apart;
        }
        factors[row] = 1 / sqrtf(sum_of_warp(squares) / CHANNELS + *epsilon);
    }
    UNROLL for (int i = 0; i < PER_LANE; i++) {
        const int vector = i * 32 + lane_index();
        if (vector >= VECTORS) continue;
        float factor[4], summand[4];
        UNROLL for (int c = 0; c < 4; c++) {
            factor[c] = affine[vector * 4 + c];
            summand[c] = affine[CHANNELS + vector * 4 + c];
        }
        UNROLL for (int row = 0; row < ROWS; row++) {
            if (first + row >= rows) continue;
            float own[4];
            UNROLL for (int c = 0; c < 4; c++) {
                own[c] = (values[row][i][c] - means[row]) * factors[row] * factor[c] + summand[c];
            }
            out[static_cast<size_t>(first + row) * VECTORS + vector] = uint2{pack(own[0], own[1]), pack(own[2], own[3])};
        }
    }
}
