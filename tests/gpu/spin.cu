// Occupies a known number of streaming multiprocessors for a known time, and stamps what it really did.
// Compiled by nvrtc for cupy (kernels only), or by nvcc as a program where there is no cupy.

typedef unsigned long long u64;

__device__ static u64 global_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void now(u64 *out) { *out = global_ns(); }

// One block per multiprocessor: each asks for more than half of its shared memory.
extern "C" __global__ void spin(u64 busy_ns, u64 *stamps) {
    extern __shared__ char hold[];
    u64 begin = global_ns(), end;
    do {
        end = global_ns();
    } while (end - begin < busy_ns);
    if (threadIdx.x == 0) {
        unsigned int sm;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        stamps[3 * blockIdx.x] = begin;
        stamps[3 * blockIdx.x + 1] = end;
        stamps[3 * blockIdx.x + 2] = sm;
        if (busy_ns == 0) hold[0] = 1;
    }
}

#ifndef __CUDACC_RTC__
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

static u64 host_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void check(cudaError_t error) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
        std::exit(1);
    }
}

// spin BLOCKS BUSY_NS PERIOD_NS REPEATS SHARED_BYTES: "offset N", then one "begin end sm" per block and repeat.
int main(int argc, char **argv) {
    if (argc != 6) return 2;
    const int blocks = std::atoi(argv[1]), repeats = std::atoi(argv[4]), shared = std::atoi(argv[5]);
    const u64 busy = std::strtoull(argv[2], nullptr, 10), period = std::strtoull(argv[3], nullptr, 10);
    u64 *device, *tick;
    const size_t each = 3 * size_t(blocks);
    check(cudaMalloc(&device, each * repeats * sizeof(u64)));
    check(cudaMalloc(&tick, sizeof(u64)));
    check(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    u64 best = ~0ull;
    long long offset = 0;
    for (int i = 0; i < 50; ++i) {
        u64 before = host_ns(), there;
        now<<<1, 1>>>(tick);
        check(cudaDeviceSynchronize());
        u64 after = host_ns();
        check(cudaMemcpy(&there, tick, sizeof there, cudaMemcpyDeviceToHost));
        if (after - before < best) {
            best = after - before;
            offset = (long long)(before + best / 2) - (long long)there;
        }
    }
    u64 due = host_ns();
    for (int i = 0; i < repeats; ++i) {
        spin<<<blocks, 64, shared>>>(busy, device + each * i);
        check(cudaDeviceSynchronize());
        due += period;
        timespec t = {(time_t)(due / 1000000000ull), (long)(due % 1000000000ull)};
        if (i + 1 < repeats) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr);
    }
    std::vector<u64> stamps(each * repeats);
    check(cudaMemcpy(stamps.data(), device, stamps.size() * sizeof(u64), cudaMemcpyDeviceToHost));
    std::printf("offset %lld\n", offset);
    for (size_t i = 0; i < stamps.size(); i += 3) std::printf("%llu %llu %llu\n", stamps[i], stamps[i + 1], stamps[i + 2]);
    return 0;
}
#endif
