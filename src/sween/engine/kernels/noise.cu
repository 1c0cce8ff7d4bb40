// Noisy copies of images from keyed random numbers by Philox4x32-10 (Salmon et al. 2011); every value
// is written once and nothing is read back.
//
// Draws equal those of sween/philox.py and sween/engine/exact_noise.py bit for bit; products and sums
// are rounded separately, as in torch. A thread handles one counter of one stream; a stream belongs to
// one block of copies of one image, and has a whole number of blocks of threads, so that no thread
// needs a 64-bit division to find its stream.
//
// With SWEEN_EMULATED the primitives come from an emulator: this is how the tests run on a CPU.

#ifndef SWEEN_EMULATED

typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(256)

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 block_index() { return blockIdx.x; }
DEVICE u32 high_half(u32 a, u32 b) { return __umulhi(a, b); }
DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE float over(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }
DEVICE float as_float(u32 word) { return __uint2float_rn(word); }

#endif

struct Words {
    u32 a, b, c, d;
};

// The words of a counter of a stream, which is identified by two words of the key and two of the
// counter.
DEVICE Words random_words(const long long *stream, u32 step) {
    u32 k0 = static_cast<u32>(stream[0]), k1 = static_cast<u32>(stream[1]);
    Words c = {step, 0, static_cast<u32>(stream[2]), static_cast<u32>(stream[3])};
    for (int round = 0; round < 10; round++) {
        u32 left = high_half(c.a, 0xD2511F53u), right = high_half(c.c, 0xCD9E8D57u);
        c = Words{right ^ c.b ^ k0, c.c * 0xCD9E8D57u, left ^ c.d ^ k1, c.a * 0xD2511F53u};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

struct Counter {
    size_t stream;
    u32 step;
};

// The counter of this thread; its step is too large in the last threads of a stream's last block.
DEVICE Counter counter_of(int steps) {
    const u32 blocks = (static_cast<u32>(steps) + 255) / 256;
    return Counter{block_index() / blocks, block_index() % blocks * 256 + thread_index()};
}

// (number + apart) % numbers of two that are smaller than that.
DEVICE u32 next_number(u32 number, u32 apart, u32 numbers) {
    const u32 next = number + apart;
    return next < numbers ? next : next - numbers;
}

// Two N(0, 1) draws by the Box-Muller transform; one half is added so that the logarithm never sees 0.
DEVICE void box_muller(u32 one, u32 other, float *draws) {
    float uniform = times(plus(as_float(one), 0.5f), 2.3283064365386963e-10f);
    float radius = root(times(-2.0f, logf(uniform)));
    float angle = times(as_float(other), 1.4629180792671596e-09f);
    draws[0] = times(radius, cosf(angle));
    draws[1] = times(radius, sinf(angle));
}

// noisy (streams, count) = image + sigma * draw; images (streams, numbers), count whole copies of one.
KERNEL gaussian(const long long *streams, const float *images, const float *sigma, float *noisy,
                int count, int numbers, int steps) {
    const Counter own = counter_of(steps);
    if (own.step >= steps) return;
    Words words = random_words(streams + 4 * own.stream, own.step);
    float draws[4];
    box_muller(words.a, words.b, draws);
    box_muller(words.c, words.d, draws + 2);
    u32 number = own.step % numbers;
    const u32 apart = static_cast<u32>(steps) % numbers;
    for (int k = 0; k < 4; k++) {
        u32 place = k * static_cast<u32>(steps) + own.step;
        if (place >= count) return;
        float pixel = images[own.stream * numbers + number];
        noisy[own.stream * count + place] = plus(pixel, times(*sigma, draws[k]));
        number = next_number(number, apart, numbers);
    }
}

// noisy = (grey level + first + entry) / levels, where the entry of the table is drawn with its exact
// probability: how many of `cumulative` are at most a 62-bit number. Copies that draw beyond the table
// are marked as invalid (streams * copies, ones before).
KERNEL exact(const long long *streams, const float *images, const long long *cumulative, float *noisy,
             unsigned char *valid, int entries, int first, int levels, int count, int numbers, int steps) {
    const Counter own = counter_of(steps);
    if (own.step >= steps) return;
    Words words = random_words(streams + 4 * own.stream, own.step);
    u64 drawn[2] = {(static_cast<u64>(words.a) << 30) | (words.b >> 2),
                    (static_cast<u64>(words.c) << 30) | (words.d >> 2)};
    u32 number = own.step % numbers;
    const u32 apart = static_cast<u32>(steps) % numbers;
    for (int k = 0; k < 2; k++) {
        u32 place = k * static_cast<u32>(steps) + own.step;
        if (place >= count) return;
        int low = 0, high = entries;
        while (low < high) {
            int middle = (low + high) / 2;
            if (static_cast<u64>(cumulative[middle]) <= drawn[k]) low = middle + 1;
            else high = middle;
        }
        if (low == entries) valid[(own.stream * count + place) / numbers] = 0;
        float pixel = images[own.stream * numbers + number];
        float level = rintf(times(pixel, static_cast<float>(levels)));
        float moved = static_cast<float>(static_cast<int>(level) + first + low);
        noisy[own.stream * count + place] = over(moved, static_cast<float>(levels));
        number = next_number(number, apart, numbers);
    }
}
