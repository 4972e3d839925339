/* An engine that does what its arguments say, one after the other; each line that it prints is a result. The CUDA
 * functions are weak: the program links with and without the fake libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WEAK __attribute__((weak))
WEAK int cudaHostAlloc(void **host, size_t bytes, unsigned flags);
WEAK int cudaMallocHost(void **host, size_t bytes);
WEAK int cudaHostRegister(void *host, size_t bytes, unsigned flags);
WEAK int cuMemHostAlloc(void **host, size_t bytes, unsigned flags);
WEAK int cuMemAllocHost_v2(void **host, size_t bytes);
WEAK int cuMemAllocHost(void **host, unsigned bytes);
WEAK int cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags);
WEAK int cuMemHostRegister(void *host, size_t bytes, unsigned flags);
WEAK int ufwatch_pinned_active(void);

static char **arg;

static long next(void)
{
    return strtol(*++arg, NULL, 10);
}

static void *loop(void *times)
{
    void *host;
    for (long i = (long)times; i != 0; i--)
        cudaHostAlloc(&host, 4096, 0);
    return NULL;
}

static void threads(long number, long times)
{
    pthread_t thread[64];
    for (long i = 0; i < number; i++)
        pthread_create(&thread[i], NULL, loop, (void *)times);
    for (long i = 0; i < number; i++)
        pthread_join(thread[i], NULL);
}

static void plugin(const char *file)
{
    void *host = NULL;
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    int (*pin)(void **, size_t) = NULL;
    if (handle != NULL)
        *(void **)&pin = dlsym(handle, "pin");
    if (pin == NULL) {
        printf("%s\n", dlerror());
        return;
    }
    int code = pin(&host, 4096);
    printf("%d from %zu\n", code, (size_t)host);
}

static long pace(long times)
{
    struct timespec begin, end;
    void *host;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < times; i++)
        cudaHostAlloc(&host, 4096, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec;
}

int main(int argc, char **argv)
{
    void *host = NULL;
    char line[16];
    pid_t child;
    (void)argc;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (arg = argv + 1; *arg != NULL; arg++) {
        const char *what = *arg;
        long bytes;
#define IS(name) (strcmp(what, name) == 0)
        if (IS("alloc"))
            bytes = next(), printf("%d\n", cudaHostAlloc(&host, (size_t)bytes, (unsigned)next()));
        else if (IS("malloc"))
            printf("%d\n", cudaMallocHost(&host, (size_t)next()));
        else if (IS("register"))
            bytes = next(), printf("%d\n", cudaHostRegister(host, (size_t)bytes, (unsigned)next()));
        else if (IS("cu_alloc"))
            bytes = next(), printf("%d\n", cuMemHostAlloc(&host, (size_t)bytes, (unsigned)next()));
        else if (IS("cu_malloc_v2"))
            printf("%d\n", cuMemAllocHost_v2(&host, (size_t)next()));
        else if (IS("cu_malloc"))
            printf("%d\n", cuMemAllocHost(&host, (unsigned)next()));
        else if (IS("cu_register_v2"))
            bytes = next(), printf("%d\n", cuMemHostRegister_v2(host, (size_t)bytes, (unsigned)next()));
        else if (IS("cu_register"))
            bytes = next(), printf("%d\n", cuMemHostRegister(host, (size_t)bytes, (unsigned)next()));
        else if (IS("errno")) {
            errno = 77;
            cudaHostAlloc(&host, 4096, 0);
            printf("%d\n", errno);
        } else if (IS("active"))
            printf("%d\n", ufwatch_pinned_active());
        else if (IS("threads"))
            bytes = next(), threads(bytes, next());
        else if (IS("pace"))
            printf("%ld\n", pace(next()));
        else if (IS("plugin"))
            plugin(*++arg);
        else if (IS("wait")) { /* for the test, which answers with a line */
            puts("waiting");
            if (fgets(line, sizeof line, stdin) == NULL)
                return 3;
        } else if (IS("fork")) { /* the child does what comes before `end`, the parent what comes after */
            child = fork();
            if (child != 0) {
                waitpid(child, NULL, 0);
                while (strcmp(*arg, "end") != 0)
                    arg++;
            }
        } else if (IS("end"))
            exit(0);
        else if (IS("chdir")) {
            if (chdir(*++arg) != 0)
                return 4;
        } else if (IS("euid")) {
            if (seteuid((uid_t)next()) != 0)
                return 5;
        } else if (IS("fsize")) {
            struct rlimit limit;
            getrlimit(RLIMIT_FSIZE, &limit);
            limit.rlim_cur = (rlim_t)next();
            setrlimit(RLIMIT_FSIZE, &limit);
        } else if (IS("close_all")) {
            for (int fd = 3; fd < 1024; fd++)
                close(fd);
        } else if (IS("open")) {
            if (open(*++arg, O_RDWR | O_CREAT, 0600) < 0)
                return 6;
        } else if (IS("_exit"))
            _exit(0);
        else
            return 2;
    }
    return 0;
}
