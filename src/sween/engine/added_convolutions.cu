// relu(x W + y V + bias) in one pass over the outputs: the last convolution of a ResNet's first block and that of
// its shortcut, both 1x1.
//
// Follows convolution.cu. A block keeps the weights in shared memory and goes from tile to tile of 64 rows, with the
// rows of the next tile on their way. Rows are kept in planes of 8 channels. A warp has 32 rows by a quarter of the
// columns. Columns are ordered so that a lane's sums are of eight consecutive ones (added_convolutions.py).
//
// Compile with DEPTH_X and DEPTH_Y, the columns of x and of y (multiples of 64), and COLUMNS (a multiple of 128).

constexpr int kThreads = 256, kTile = 64;
constexpr int kPlanes = (DEPTH_X + DEPTH_Y) / 8, kSteps = kPlanes / 2;
constexpr u32 kPlane = (kTile + 1) * 16;  // without bank conflicts where a row is written
constexpr u32 kRows = kPlanes * kPlane;   // bytes of a tile
constexpr u32 kWeights = 2 * kRows;
constexpr int kGroups = COLUMNS / 128;    // of 32 columns that a warp has
static_assert(kWeights + kSteps * (COLUMNS / 16) * 512 == ADDED_SHARED_BYTES, "added_convolutions.py computes it too");

template <int K>
DEVICE void fetch(u32 to, const uint4 *from, int tile, int rows) {
    constexpr int planes = K / 8;
    UNROLL for (int i = 0; i < kTile * planes / kThreads; i++) {
        const int k = i * kThreads + thread_index(), row = tile * kTile + k / planes;
        // Rows behind the last one are not stored; any will do.
        const size_t place = row < rows ? row : rows - 1;
        copy(to + k % planes * kPlane + k / planes * 16, from + place * planes + k % planes);
    }
}

KERNEL(kThreads, ADDED_SHARED_BYTES > 113000 ? 1 : 2)
added_convolutions(const uint4 *x, const uint4 *y, const uint4 *weights, const float *bias, uint4 *out, int rows, int blocks) {
    const int lane = lane_index(), quarter = warp_index() / 2, first = warp_index() % 2 * 32;
    const int tiles = (rows + kTile - 1) / kTile;
    for (int i = thread_index(); i < kSteps * (COLUMNS / 16) * 32; i += kThreads) {
        write(kWeights + i * 16, load(weights + i));
    }
    u32 now = 0;
    int tile = block_index();
    fetch<DEPTH_X>(now, x, tile, rows);
    fetch<DEPTH_Y>(now + DEPTH_X / 8 * kPlane, y, tile, rows);
    ROLLED for (; tile < tiles; tile += blocks) {
        copied();
        barrier();
        if (tile + blocks < tiles) {
            fetch<DEPTH_X>(kRows - now, x, tile + blocks, rows);
            fetch<DEPTH_Y>(kRows - now + DEPTH_X / 8 * kPlane, y, tile + blocks, rows);
        }
        float sums[2][kGroups * 4][4];
        UNROLL for (int n = 0; n < kGroups * 4; n++) {
            const float *own = bias + (quarter * kGroups + n / 4) * 32 + (lane & 3) * 8 + n % 4 * 2;
            UNROLL for (int i = 0; i < 8; i++) sums[i / 4][n][i % 4] = own[i % 2];
        }
        const u32 place = now + (lane >> 4) * kPlane + (first + (lane & 15)) * 16;
        UNROLL for (int step = 0; step < kSteps; step++) {
            u32 a[2][4];
            UNROLL for (int m = 0; m < 2; m++) load_matrices(a[m], place + step * 2 * kPlane + m * 256);
            UNROLL for (int pair = 0; pair < kGroups * 2; pair++) {
                const int both = step * (COLUMNS / 16) + quarter * kGroups * 2 + pair;
                const uint4 b = read_four(kWeights + (both * 32 + lane) * 16);
                UNROLL for (int m = 0; m < 2; m++) {
                    multiply_add(sums[m][pair * 2], a[m], b.x, b.y);
                    multiply_add(sums[m][pair * 2 + 1], a[m], b.z, b.w);
                }
            }
        }
        UNROLL for (int i = 0; i < 4; i++) {
            const int m = i / 2, half = i % 2 * 2;
            const int row = tile * kTile + first + m * 16 + i % 2 * 8 + (lane >> 2);
            if (row >= rows) continue;
            uint4 *own = out + static_cast<size_t>(row) * (COLUMNS / 8) + quarter * kGroups * 4 + (lane & 3);
            UNROLL for (int group = 0; group < kGroups; group++) {
                u32 both[4];
                UNROLL for (int t = 0; t < 4; t++) {
                    const float *sum = sums[m][group * 4 + t];
                    both[t] = pack_relu(sum[half], sum[half + 1]);
                }
                own[group * 4] = uint4{both[0], both[1], both[2], both[3]};
            }
        }
        now = kRows - now;
    }
}
