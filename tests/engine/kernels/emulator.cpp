// Runs a CUDA kernel of src/sween/engine/kernels on a CPU: every thread of a block is a fiber, and
// warp-wide instructions are executed once all 32 lanes have reached them. Shared memory records which
// threads read and wrote it since the last barrier, so races are found in any order of execution.
//
// Compile with -DSTAGE=N -DSOURCE="path" as a shared library; `launch(blocks, arguments)` runs it and
// returns the number of faults: races, out-of-bounds or misaligned accesses, uninitialised reads.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
struct uint2 {
    u32 x, y;
};
struct uint4 {
    u32 x, y, z, w;
};

#define SWEEN_EMULATED
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define DEVICE static inline
#define MEMBER static inline
#define KERNEL(threads, blocks)                \
    static constexpr int block_size = threads; \
    static void

alignas(128) static unsigned char shared[SHARED_BYTES];

namespace {

// The threads that wrote and read a word since the last barrier.
constexpr int kNobody = -1, kSeveral = -2;
struct Word {
    int writer, reader;
    bool known;
};
Word words[SHARED_BYTES / 4];
long faults;

constexpr int kStack = 1 << 17;

struct Lane {
    jmp_buf place;
    bool started, done, at_barrier;
    u32 *registers, offset, b0, b1;  // what a warp-wide instruction reads and writes
    const u32 *a;
    float *sums;
    u32 *integer_sums;
};

std::vector<Lane> lanes;
jmp_buf scheduler;
int current, block;
std::vector<int> arrived, turn;
std::function<void()> body;

// A jump leaves the signal mask alone; swapcontext would ask the kernel to set it each time.
void give_way() {
    if (!_setjmp(lanes[current].place)) _longjmp(scheduler, 1);
}

// Waits for the other lanes of the warp; the last to arrive does the work for all.
template <class Work>
void together(Work work) {
    const int warp = current / 32, own = turn[warp];
    if (++arrived[warp] == 32) {
        work(&lanes[warp * 32]);
        arrived[warp] = 0;
        turn[warp]++;
        return;
    }
    while (turn[warp] == own) give_way();
}

bool out_of_bounds(u32 offset, u32 bytes) {
    if (offset % bytes == 0 && offset + bytes <= SHARED_BYTES) return false;
    faults++;
    return true;
}

template <class Value>
Value read_shared(u32 offset, int thread) {
    Value value{};
    if (out_of_bounds(offset, sizeof value)) return value;
    for (u32 i = offset / 4; i < (offset + sizeof value) / 4; i++) {
        Word &word = words[i];
        if (!word.known || (word.writer != kNobody && word.writer != thread)) faults++;
        word.reader = word.reader == kNobody || word.reader == thread ? thread : kSeveral;
    }
    std::memcpy(&value, shared + offset, sizeof value);
    return value;
}

template <class Value>
void write_shared(u32 offset, Value value, int thread) {
    if (out_of_bounds(offset, sizeof value)) return;
    for (u32 i = offset / 4; i < (offset + sizeof value) / 4; i++) {
        Word &word = words[i];
        const bool raced = word.writer != kNobody && word.writer != thread;
        if (raced || (word.reader != kNobody && word.reader != thread)) faults++;
        word.writer = thread;
        word.known = true;
    }
    std::memcpy(shared + offset, &value, sizeof value);
}

void enter() {
    body();
    lanes[current].done = true;
    _longjmp(scheduler, 1);
}

// Runs the current lane until it gives way.
[[gnu::noinline]] void resume(char *stack) {
    Lane &lane = lanes[current];
    if (_setjmp(scheduler)) return;
    if (lane.started) _longjmp(lane.place, 1);
    lane.started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStack;
    makecontext(&context, enter, 0);
    setcontext(&context);
}

// 16 bits: a float16, or the upper half of a float, rounded to even.
float to_float(u32 both, int which) {
    const unsigned short bits = static_cast<unsigned short>(both >> (16 * which));
#ifdef BRAIN
    const u32 word = u32(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
#else
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return static_cast<float>(value);
#endif
}

u32 from_float(float value) {
#ifdef BRAIN
    u32 word;
    std::memcpy(&word, &value, 4);
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
#else
    _Float16 half = static_cast<_Float16>(value);
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
#endif
}

}  // namespace

static inline int thread_index() { return current; }
static inline std::size_t block_index() { return block; }
static inline u32 read_word(u32 offset) { return read_shared<u32>(offset, current); }
static inline float read_float(u32 offset) { return read_shared<float>(offset, current); }
static inline void write(u32 offset, u32 value) { write_shared(offset, value, current); }
static inline void write(u32 offset, float value) { write_shared(offset, value, current); }
static inline void write(u32 offset, uint4 value) { write_shared(offset, value, current); }
static inline uint4 read_four(u32 offset) { return read_shared<uint4>(offset, current); }
static inline uint2 read_pair(u32 offset) { return read_shared<uint2>(offset, current); }
static inline void write(u32 offset, uint2 value) { write_shared(offset, value, current); }

static inline void copy(u32 offset, const uint4 *from) { write_shared(offset, *from, current); }
static inline void copied() {}

static inline void barrier() {
    lanes[current].at_barrier = true;
    while (lanes[current].at_barrier) give_way();
}

static inline void load_matrices(u32 (&a)[4], u32 offset) {
    lanes[current].registers = a;
    lanes[current].offset = offset;
    together([](Lane *warp) {
        for (int from = 0; from < 32; from++) {
            const uint4 row = read_shared<uint4>(warp[from].offset, current / 32 * 32 + from);
            for (int part = 0; part < 4; part++) {
                std::memcpy(&warp[from % 8 * 4 + part].registers[from / 8], &row.x + part, 4);
            }
        }
    });
}

static inline void load_transposed(u32 (&a)[4], u32 offset) {
    lanes[current].registers = a;
    lanes[current].offset = offset;
    together([](Lane *warp) {
        unsigned short values[4][8][8];
        for (int from = 0; from < 32; from++) {
            const uint4 row = read_shared<uint4>(warp[from].offset, current / 32 * 32 + from);
            std::memcpy(values[from / 8][from % 8], &row, sizeof row);
        }
        for (int lane = 0; lane < 32; lane++) {
            for (int i = 0; i < 4; i++) {
                const auto &own = values[i];
                const int row = lane / 4, column = lane % 4 * 2;
                warp[lane].registers[i] = own[column][row] | own[column + 1][row] << 16;
            }
        }
    });
}

static inline void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Lane &own = lanes[current];
    own.sums = sum, own.a = a, own.b0 = b0, own.b1 = b1;
    together([](Lane *warp) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; lane++) {
            for (int which = 0; which < 2; which++) {
                const int row = lane / 4, column = lane % 4 * 2 + which;
                for (int part = 0; part < 4; part++) {
                    left[row + part % 2 * 8][column + part / 2 * 8] = to_float(warp[lane].a[part], which);
                }
                right[column][row] = to_float(warp[lane].b0, which);
                right[column + 8][row] = to_float(warp[lane].b1, which);
            }
        }
        for (int lane = 0; lane < 32; lane++) {
            for (int part = 0; part < 4; part++) {
                const int row = lane / 4 + part / 2 * 8, column = lane % 4 * 2 + part % 2;
                float total = warp[lane].sums[part];
                for (int k = 0; k < 16; k++) total += left[row][k] * right[k][column];
                warp[lane].sums[part] = total;
            }
        }
    });
}

static inline void multiply_add(u32 (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Lane &own = lanes[current];
    own.integer_sums = sum, own.a = a, own.b0 = b0, own.b1 = b1;
    together([](Lane *warp) {
        int left[16][32], right[32][8];
        for (int lane = 0; lane < 32; lane++) {
            for (int byte = 0; byte < 4; byte++) {
                const int row = lane / 4, column = lane % 4 * 4 + byte, shift = 8 * byte;
                for (int part = 0; part < 4; part++) {
                    left[row + part % 2 * 8][column + part / 2 * 16] =
                        static_cast<unsigned char>(warp[lane].a[part] >> shift);
                }
                right[column][row] = static_cast<signed char>(warp[lane].b0 >> shift);
                right[column + 16][row] = static_cast<signed char>(warp[lane].b1 >> shift);
            }
        }
        for (int lane = 0; lane < 32; lane++) {
            for (int part = 0; part < 4; part++) {
                const int row = lane / 4 + part / 2 * 8, column = lane % 4 * 2 + part % 2;
                for (int k = 0; k < 32; k++) {
                    warp[lane].integer_sums[part] += left[row][k] * right[k][column];
                }
            }
        }
    });
}

static inline float as_float(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
static inline float add(float a, float b) { return a + b; }
static inline float times(float a, float b) { return a * b; }
static inline float times_add(float a, float b, float c) { return std::fma(a, b, c); }
static inline float clamp(float value) { return std::min(std::max(value, 0.0f), 1.0f); }
static inline u32 pack(float low, float high) { return from_float(low) | from_float(high) << 16; }
static inline float relu(float value) { return value < 0 ? 0 : value; }
static inline u32 pack_relu(float low, float high) { return pack(relu(low), relu(high)); }
static inline void unpack(u32 both, float &low, float &high) {
    low = to_float(both, 0), high = to_float(both, 1);
}

// Sums and products of two float16 are rounded as if once: float32 has twice their bits and two more.
static inline u32 add_relu(u32 a, u32 b) {
    return pack_relu(to_float(a, 0) + to_float(b, 0), to_float(a, 1) + to_float(b, 1));
}
static inline u32 times_clamp(u32 a, u32 b) {
    return pack(clamp(to_float(a, 0) * to_float(b, 0)), clamp(to_float(a, 1) * to_float(b, 1)));
}
static inline u32 to_bytes(u32 low, u32 high) {
    u32 bytes = 0;
    for (int i = 0; i < 4; i++) {
        const double exact = to_float(i < 2 ? low : high, i % 2) * 255.0;
        bytes |= (static_cast<u32>(std::nearbyint(exact)) & 255) << (8 * i);
    }
    return bytes;
}
static inline uint4 load(const uint4 *where) { return *where; }
static inline uint2 load(const uint2 *where) { return *where; }
static inline u32 load(const u32 *where) { return *where; }

static inline float sum_of_warp(float value) {
    lanes[current].sums = &value;
    together([](Lane *warp) {
        for (int apart = 16; apart; apart /= 2) {
            float sums[32];
            for (int lane = 0; lane < 32; lane++) sums[lane] = *warp[lane].sums + *warp[lane ^ apart].sums;
            for (int lane = 0; lane < 32; lane++) *warp[lane].sums = sums[lane];
        }
    });
    return value;
}

#include SOURCE

namespace {

template <class Argument>
Argument read(void *where) {
    Argument argument;
    std::memcpy(&argument, where, sizeof argument);
    return argument;
}

template <class... Arguments, std::size_t... Positions>
void call(void (*kernel)(Arguments...), void **arguments, std::index_sequence<Positions...>) {
    kernel(read<Arguments>(arguments[Positions])...);
}

template <class... Arguments>
void call(void (*kernel)(Arguments...), void **arguments) {
    call(kernel, arguments, std::index_sequence_for<Arguments...>());
}

void run_block() {
    lanes.assign(block_size, Lane());
    arrived.assign(block_size / 32, 0);
    turn.assign(block_size / 32, 0);
    std::memset(shared, 0xff, sizeof shared);  // uninitialised memory reads as NaN
    for (Word &word : words) word = Word{kNobody, kNobody, false};
    static const std::unique_ptr<char[]> stacks(new char[std::size_t(block_size) * kStack]);
    for (;;) {
        int waiting = 0, done = 0;
        for (int warp = 0; warp < block_size / 32; warp++) {
            for (bool moved = true; moved;) {
                moved = false;
                for (current = warp * 32; current < warp * 32 + 32; current++) {
                    if (lanes[current].done || lanes[current].at_barrier) continue;
                    moved = true;
                    resume(&stacks[std::size_t(current) * kStack]);
                }
            }
        }
        for (Lane &lane : lanes) waiting += lane.at_barrier, done += lane.done;
        if (done == block_size) return;
        if (waiting + done != block_size) std::abort();
        for (Lane &lane : lanes) lane.at_barrier = false;
        for (Word &word : words) word.writer = word.reader = kNobody;
    }
}

}  // namespace

#ifndef ENTRY
#define ENTRY JOIN(stage, STAGE)
#endif

extern "C" long launch(int blocks, void **arguments) {
    faults = 0;
    body = [arguments] { call(ENTRY, arguments); };
    for (block = 0; block < blocks; block++) run_block();
    return faults;
}
