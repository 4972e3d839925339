/* What a pinned call takes: bench LIBCUDART BATCHES CALLS (the most calls of a batch). Prints one JSON object, by case:
 * nanoseconds per call of each batch, `symbol` as an engine calls (through the interposer where it is preloaded),
 * `handle` past the interposer. The two take turns. A case not answered as it should be is left out. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int cudaHostAlloc(void **host, size_t bytes, unsigned flags);
int cudaHostRegister(void *host, size_t bytes, unsigned flags);
__attribute__((weak)) int cudaFreeHost(void *host);
__attribute__((weak)) int cudaHostUnregister(void *host);

static int (*alloc[2])(void **, size_t, unsigned) = {cudaHostAlloc};
static int (*lock[2])(void *, size_t, unsigned) = {cudaHostRegister};
static void *page;

static int host_alloc(int way)
{
    void *host = NULL;
    int code = alloc[way](&host, 4096, 0);
    return cudaFreeHost != NULL && code == 0 ? cudaFreeHost(host) : code;
}

static int host_register(int way)
{
    int code = lock[way](page, 4096, 0);
    return cudaHostUnregister != NULL && code == 0 ? cudaHostUnregister(page) : code;
}

static int refused(int way) /* the cheapest answer there is: no page is touched */
{
    return lock[way](NULL, 0, 1u << 31) == 0;
}

static double batch(int (*call)(int), int way, long calls)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < calls; i++)
        call(way);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (double)calls;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*call)(int);
    } cases[] = {{"alloc_and_free", host_alloc}, {"register_and_unregister", host_register}, {"refused", refused}};
    static double took[2][10000];
    void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW) : NULL;
    long batches = argc == 4 ? atol(argv[2]) : 0, calls = argc == 4 ? atol(argv[3]) : 0;
    const char *between = "";
    if (library == NULL || batches < 1 || batches > 10000 || calls < 1)
        return 2;
    *(void **)&alloc[1] = dlsym(library, "cudaHostAlloc");
    *(void **)&lock[1] = dlsym(library, "cudaHostRegister");
    page = aligned_alloc(4096, 4096);
    printf("{");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].call(0) != 0 || cases[i].call(1) != 0)
            continue;
        double once = batch(cases[i].call, 1, 3); /* a batch of 2 ms at most: some machines pin very slowly */
        long few = once * (double)calls > 2e6 ? (long)(2e6 / once) + 1 : calls;
        for (long b = 0; b < batches; b++)
            for (long turn = 0; turn < 2; turn++)
                took[(b + turn) % 2][b] = batch(cases[i].call, (int)((b + turn) % 2), few);
        printf("%s\"%s\": {", between, cases[i].name);
        for (int way = 0; way < 2; way++) {
            printf("%s: [", way == 0 ? "\"symbol\"" : ", \"handle\"");
            for (long b = 0; b < batches; b++)
                printf("%s%.1f", b == 0 ? "" : ", ", took[way][b]);
            printf("]");
        }
        printf("}");
        between = ", ";
    }
    printf("}\n");
    return 0;
}
