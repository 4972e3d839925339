/* Stands for libcudart.so.N (-DRUNTIME) or libcuda.so.1 (-DDRIVER). More than 1 GiB is refused with 2; flags of 1000 and
 * more are answered by flags - 1000. The pointer that comes back tells which library it was: TAG. */
#include <stddef.h>

#ifndef TAG
#define TAG 1
#endif

int cuMemHostAlloc(void **host, size_t bytes, unsigned flags);

static int answer(void **host, size_t bytes, unsigned flags)
{
    for (volatile int spin = 0; spin < SPIN; spin++)
        ;
    if (flags >= 1000)
        return (int)flags - 1000;
    if (bytes > (size_t)1 << 30)
        return 2;
    if (host != NULL)
        *host = (void *)(size_t)TAG;
    return 0;
}

#ifdef RUNTIME
int cudaHostAlloc(void **host, size_t bytes, unsigned flags)
{
#ifdef NESTED /* as a runtime that reaches the driver by its symbol would */
    return cuMemHostAlloc(host, bytes, flags);
#else
    return answer(host, bytes, flags);
#endif
}
int cudaMallocHost(void **host, size_t bytes) { return answer(host, bytes, 0); }
int cudaHostRegister(void *host, size_t bytes, unsigned flags) { (void)host; return answer(NULL, bytes, flags); }
#endif

#ifdef DRIVER
int cuMemHostAlloc(void **host, size_t bytes, unsigned flags) { return answer(host, bytes, flags); }
int cuMemAllocHost_v2(void **host, size_t bytes) { return answer(host, bytes, 0); }
int cuMemAllocHost(void **host, unsigned bytes) { return answer(host, bytes, 0); }
int cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) { (void)host; return answer(NULL, bytes, flags); }
int cuMemHostRegister(void *host, size_t bytes, unsigned flags) { (void)host; return answer(NULL, bytes, flags); }
#endif
