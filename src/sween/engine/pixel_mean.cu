// The mean over the pixels of an image, of each channel. Follows convolution.cu. A thread has 8 channels of an image;
// sums are float32, in the order of the pixels.

constexpr int kThreads = 256;

// images (N, pixels, planes * 8) float16; out (N, planes * 8) float16; `all` is N * planes.
KERNEL(kThreads, 4)
pixel_mean(const uint4 *images, uint4 *out, int pixels, int planes, int all) {
    const u32 place = static_cast<u32>(block_index()) * kThreads + thread_index();
    if (place >= static_cast<u32>(all)) return;
    const u32 number = place / static_cast<u32>(planes), plane = place % static_cast<u32>(planes);
    const uint4 *own = images + static_cast<size_t>(number) * pixels * planes + plane;
    float sums[8] = {};
    _Pragma("unroll 8") for (int pixel = 0; pixel < pixels; pixel++) {
        const uint4 eight = load(own + static_cast<size_t>(pixel) * planes);
        const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
        UNROLL for (int i = 0; i < 4; i++) {
            float low, high;
            unpack(pairs[i], low, high);
            sums[2 * i] += low;
            sums[2 * i + 1] += high;
        }
    }
    const float factor = 1.0f / pixels;
    out[place] = uint4{pack(sums[0] * factor, sums[1] * factor), pack(sums[2] * factor, sums[3] * factor),
                       pack(sums[4] * factor, sums[5] * factor), pack(sums[6] * factor, sums[7] * factor)};
}
