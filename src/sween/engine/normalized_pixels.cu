// Images as convolutions of a library read them fastest: normalised, in float16, the channels of a pixel next to
// each other and as many of them as its kernels want; those that the images do not have are 0.
//
// Follows convolution.cu. A thread has one pixel. Compile with CHANNELS, of the images, at most 8.

constexpr int kThreads = 256;

// images (N, CHANNELS, size) float32, where `size` pixels are an image and `all` are N of them; affine: factor and
// summand of each channel; out (N, size, 8) float16.
KERNEL(kThreads, 8)
normalized_pixels(const float *images, const float *affine, uint4 *out, int size, int all) {
    const u32 pixel = static_cast<u32>(block_index()) * kThreads + thread_index();
    if (pixel >= static_cast<u32>(all)) return;
    const u32 number = pixel / static_cast<u32>(size), place = pixel % static_cast<u32>(size);
    const float *own = images + static_cast<size_t>(number) * CHANNELS * size + place;
    float values[8] = {};
    UNROLL for (int c = 0; c < CHANNELS; c++) {
        values[c] = own[static_cast<size_t>(c) * size] * affine[c] + affine[CHANNELS + c];
    }
    out[pixel] = uint4{pack(values[0], values[1]), pack(values[2], values[3]),
                       pack(values[4], values[5]), pack(values[6], values[7])};
}
