// Runs a kernel of noise.cu on a CPU, thread after thread: its threads share nothing.
//
// Compile with -DSOURCE="path" -ffp-contract=off as a shared library.

#include <cmath>
#include <cstddef>
#include <utility>

typedef unsigned int u32;
typedef unsigned long long u64;

#define SWEEN_EMULATED
#define DEVICE static inline
#define KERNEL static void

namespace {

size_t current;

u32 thread_index() { return current % 256; }
u32 block_index() { return static_cast<u32>(current / 256); }
u32 high_half(u32 a, u32 b) { return static_cast<u32>((static_cast<u64>(a) * b) >> 32); }
float plus(float a, float b) { return a + b; }
float times(float a, float b) { return a * b; }
float over(float a, float b) { return a / b; }
float root(float a) { return std::sqrt(a); }
float as_float(u32 word) { return static_cast<float>(word); }

}  // namespace

#include SOURCE

template <typename... Types, size_t... Places>
static void call(void (*kernel)(Types...), void **arguments, std::integer_sequence<size_t, Places...>) {
    kernel(*static_cast<Types *>(arguments[Places])...);
}

template <typename... Types>
static void run(void (*kernel)(Types...), int blocks, void **arguments) {
    for (current = 0; current < static_cast<size_t>(blocks) * 256; current++)
        call(kernel, arguments, std::index_sequence_for<Types...>());
}

extern "C" void launch_gaussian(int blocks, void **arguments) { run(gaussian, blocks, arguments); }
extern "C" void launch_exact(int blocks, void **arguments) { run(exact, blocks, arguments); }
