// A program whose names the compiler mangles.
#include <cstdio>
#include <unistd.h>

namespace grid {
template <typename T> struct Solver {
    __attribute__((noinline)) void relax(T value, int depth) {
        if (depth == 0) for (;;) pause();
        relax(value, depth - 1);
        __asm__ volatile("");
    }
};
} // namespace grid

int main() {
    std::puts("ready");
    std::fflush(stdout);
    grid::Solver<double>().relax(1.0, 2);
}
