// x + y, and relu(factor * (x + y) + summand) with numbers for each channel: a batch norm that cannot be folded into
// a convolution, with the sum before it and the relu after it.
//
// Follows convolution.cu. A thread has the same 8 channels of several pixels; the number of threads is a multiple of
// the planes of 8 channels that a pixel has. Compile with SHORTCUT if there is a y; otherwise the sum is not written.

constexpr int kThreads = 256;

// x, y, total and out (pixels, planes * 8) float16; affine (2, planes * 8) float32: factors, then summands; `all` is
// pixels * planes, `threads` those of the grid.
KERNEL(kThreads, 4)
batch_norm_relu(const uint4 *x, const uint4 *y, const float *affine, uint4 *total, uint4 *out, int planes, int all,
                int threads) {
    u32 place = static_cast<u32>(block_index()) * kThreads + thread_index();
    const u32 plane = place % static_cast<u32>(planes);
    float factors[8], summands[8];
    UNROLL for (int i = 0; i < 8; i++) {
        factors[i] = affine[plane * 8 + i];
        summands[i] = affine[(planes + plane) * 8 + i];
    }
    _Pragma("unroll 2") for (; place < static_cast<u32>(all); place += threads) {
        const uint4 own = load(x + place);
        const u32 pairs[4] = {own.x, own.y, own.z, own.w};
#ifdef SHORTCUT
        const uint4 other = load(y + place);
        const u32 others[4] = {other.x, other.y, other.z, other.w};
        u32 sums[4];
#endif
        u32 outputs[4];
        UNROLL for (int i = 0; i < 4; i++) {
            float low, high;
            unpack(pairs[i], low, high);
#ifdef SHORTCUT
            float more, most;
            unpack(others[i], more, most);
            low += more;
            high += most;
            sums[i] = pack(low, high);
#endif
            outputs[i] = pack_relu(low * factors[2 * i] + summands[2 * i],
                                   high * factors[2 * i + 1] + summands[2 * i + 1]);
        }
#ifdef SHORTCUT
        total[place] = uint4{sums[0], sums[1], sums[2], sums[3]};
#endif
        out[place] = uint4{outputs[0], outputs[1], outputs[2], outputs[3]};
    }
}
