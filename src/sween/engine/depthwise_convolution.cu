// A depthwise convolution of stride 1 that keeps the size, with its bias: float16, channels-last, sums in float32.
//
// Follows convolution.cu. A thread has two channels of ROWS x COLUMNS pixels: it reads a row of pixels once for all
// of its outputs that the row belongs to. Compile with PAIRS (of channels), WINDOW (its side, odd), ROWS and COLUMNS.

constexpr int kThreads = 128;
constexpr int REACH = WINDOW / 2, ACROSS = COLUMNS + WINDOW - 1;

// x, out (images, height, width, 2 * PAIRS) float16; weights (WINDOW, WINDOW, 2 * PAIRS) float16; bias (2 * PAIRS)
// float32; `all` threads have work.
KERNEL(kThreads, COLUMNS > 7 ? 3 : 4)
depthwise_convolution(const u32 *x, const u32 *weights, const float *bias, u32 *out, int height, int width, int all) {
    const u32 place = static_cast<u32>(block_index()) * kThreads + thread_index();
    if (place >= static_cast<u32>(all)) return;
    const u32 pair = place % PAIRS, tile = place / PAIRS;
    const u32 tiles_across = (width + COLUMNS - 1) / COLUMNS, tiles_down = (height + ROWS - 1) / ROWS;
    const int left = tile % tiles_across * COLUMNS, top = tile / tiles_across % tiles_down * ROWS;
    const int image = tile / (tiles_across * tiles_down) * height;
    weights += pair;
    u32 inside = 0;  // bits of the columns that are there
    UNROLL for (int i = 0; i < ACROSS; i++) {
        const int column = left + i - REACH;
        inside |= static_cast<u32>(column >= 0 && column < width) << i;
    }
    float sums[ROWS][COLUMNS][2];
    UNROLL for (int i = 0; i < ROWS * COLUMNS; i++) {
        UNROLL for (int c = 0; c < 2; c++) sums[i / COLUMNS][i % COLUMNS][c] = bias[2 * pair + c];
    }
    UNROLL for (int row = 0; row < ROWS + WINDOW - 1; row++) {
        const int y = top + row - REACH;
        if (y < 0 || y >= height) continue;
        const u32 *line = x + ((static_cast<long long>(image + y) * width + left - REACH) * PAIRS + pair);
        float pixels[ACROSS][2];
        UNROLL for (int i = 0; i < ACROSS; i++) {
            unpack(inside >> i & 1 ? load(line + i * PAIRS) : 0, pixels[i][0], pixels[i][1]);
        }
        UNROLL for (int own = 0; own < ROWS; own++) {
            const int down = row - own;
            if (down < 0 || down >= WINDOW) continue;
            UNROLL for (int across = 0; across < WINDOW; across++) {
                float weight[2];
                unpack(load(weights + (down * WINDOW + across) * PAIRS), weight[0], weight[1]);
                UNROLL for (int i = 0; i < COLUMNS; i++) {
                    UNROLL for (int c = 0; c < 2; c++) sums[own][i][c] += weight[c] * pixels[i + across][c];
                }
            }
        }
    }
    UNROLL for (int own = 0; own < ROWS; own++) {
        if (top + own >= height) continue;
        u32 *line = out + ((static_cast<long long>(image + top + own) * width + left) * PAIRS + pair);
        UNROLL for (int i = 0; i < COLUMNS; i++) {
            if (inside >> (i + REACH) & 1) line[i * PAIRS] = pack(sums[own][i][0], sums[own][i][1]);
        }
    }
}
