// A depthwise convolution of stride 1 that keeps the size, with its bias: float16, channels-last, sums in float32.
//
// Follows convolution.cu. A thread has two channels of ROWS x COLUMNS pixels: it reads a row of pixels once for all
// of its outputs that the row belongs to. Compile with WINDOW (of the window, odd), ROWS and COLUMNS.

constexpr int kThreads = 128;
constexpr int REACH = WINDOW / 2, ACROSS = COLUMNS + WINDOW - 1;

DEVICE u32 load_word(const u32 *where) {
#ifdef SWEEN_EMULATED
    return *where;
#else
    return __ldg(where);
#endif
}

// x, out (images, height, width, 2 * pairs) float16; weights (WINDOW, WINDOW, 2 * pairs) float16; bias (2 * pairs)
// float32; `all` threads have work.
KERNEL(kThreads, COLUMNS > 7 ? 3 : 4)
depthwise_convolution(const u32 *x, const u32 *weights, const float *bias, u32 *out, int height, int width, int pairs,
                      int all) {
    const u32 place = static_cast<u32>(block_index()) * kThreads + thread_index();
    if (place >= static_cast<u32>(all)) return;
    const u32 pair = place % pairs, tile = place / pairs;
    const u32 tiles_across = (width + COLUMNS - 1) / COLUMNS, tiles_down = (height + ROWS - 1) / ROWS;
    const int left = tile % tiles_across * COLUMNS, top = tile / tiles_across % tiles_down * ROWS;
    const size_t image = static_cast<size_t>(tile / (tiles_across * tiles_down)) * height * width * pairs + pair;
    float sums[ROWS][COLUMNS][2];
    UNROLL for (int i = 0; i < ROWS * COLUMNS; i++) {
        UNROLL for (int c = 0; c < 2; c++) sums[i / COLUMNS][i % COLUMNS][c] = bias[2 * pair + c];
    }
    UNROLL for (int row = 0; row < ROWS + WINDOW - 1; row++) {
        const int y = top + row - REACH;
        if (y < 0 || y >= height) continue;
        float pixels[ACROSS][2];
        UNROLL for (int i = 0; i < ACROSS; i++) {
            const int column = left + i - REACH;
            u32 both = 0;
            if (column >= 0 && column < width) both = load_word(x + image + (static_cast<size_t>(y) * width + column) * pairs);
            unpack(both, pixels[i][0], pixels[i][1]);
        }
        UNROLL for (int own = 0; own < ROWS; own++) {
            const int down = row - own;
            if (down < 0 || down >= WINDOW) continue;
            UNROLL for (int across = 0; across < WINDOW; across++) {
                float weight[2];
                unpack(load_word(weights + (down * WINDOW + across) * pairs + pair), weight[0], weight[1]);
                UNROLL for (int i = 0; i < COLUMNS; i++) {
                    UNROLL for (int c = 0; c < 2; c++) sums[own][i][c] += weight[c] * pixels[i + across][c];
                }
            }
        }
    }
    UNROLL for (int own = 0; own < ROWS; own++) {
        UNROLL for (int i = 0; i < COLUMNS; i++) {
            const int y = top + own, column = left + i;
            if (y >= height || column >= width) continue;
            out[image + (static_cast<size_t>(y) * width + column) * pairs] = pack(sums[own][i][0], sums[own][i][1]);
        }
    }
}
