/* Counts page-locked ("pinned") host allocations of the process it is preloaded into (LD_PRELOAD; README.md).
 *
 * HARMLESS COMES BEFORE COMPLETE. A hook calls the real function, hands its result back untouched and adds to atomics:
 * no lock, no allocation, no system call. One thread, begun at the first hooked call, writes them to
 * UFWATCH_EXPORT_DIR/pinned-<12 hex>.prom in the in-place format that ufwatch/decode/textfile_format.py describes.
 * Without UFWATCH_EXPORT_DIR, without CUDA, or in a process that never pins: no file, no thread, no effect.
 */
#include "ufwatch_pinned.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

/* Where the real function is not there to be called: cudaErrorInitializationError and CUDA_ERROR_NOT_INITIALIZED, one
 * number in both interfaces and known to every CUDA since the first, unlike 302 and 801. */
#define NO_CUDA 3

#define SITES 32
#define PROBES 8
struct site { /* a place in the program that calls a hook, and what it is to reach */
    _Atomic uintptr_t caller, real;
};

static const char *basename_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash == NULL ? file : slash + 1;
}

static bool within(const void *address, const char *library)
{
    Dl_info info;
    return dladdr(address, &info) != 0 && info.dli_fname != NULL &&
           strncmp(basename_of(info.dli_fname), library, strlen(library)) == 0;
}

static void *symbol_in(const char *file, const char *name)
{
    void *handle = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    void *found = dlsym(handle, name);
    Dl_info info, self;
    if (found != NULL && dladdr(found, &info) != 0 && dladdr((void *)(uintptr_t)&symbol_in, &self) != 0 &&
        info.dli_fbase == self.dli_fbase)
        found = NULL; /* this library itself, linked instead of preloaded */
    dlclose(handle);
    return found;
}

/* In the caller's own dependencies: of two CUDA runtimes in one process, the one that it was built for. */
static void *in_scope_of(const void *caller, const char *name)
{
    Dl_info info;
    struct link_map *map = NULL;
    if (dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL || map->l_name[0] == '\0')
        return NULL; /* the main program: its dependencies are the global ones */
    return symbol_in(map->l_name, name);
}

struct search {
    const char *library;
    int passed_over;
    char file[PATH_MAX];
};

static int look_at(struct dl_phdr_info *info, size_t size, void *data)
{
    struct search *search = data;
    (void)size;
    if (info->dlpi_name == NULL || strlen(info->dlpi_name) >= sizeof search->file ||
        strncmp(basename_of(info->dlpi_name), search->library, strlen(search->library)) != 0 ||
        search->passed_over-- > 0)
        return 0;
    strcpy(search->file, info->dlpi_name);
    return 1;
}

/* Among all that is loaded: a library opened with RTLD_LOCAL is in nobody's global scope. Never loads one. */
static void *anywhere(const char *library, const char *name)
{
    for (int nth = 0; nth < 8; nth++) {
        struct search search = {.library = library, .passed_over = nth};
        if (dl_iterate_phdr(look_at, &search) == 0)
            return NULL;
        void *found = symbol_in(search.file, name);
        if (found != NULL)
            return found;
    }
    return NULL;
}

static uintptr_t find(const char *library, const char *name, const void *caller)
{
    Dl_info info;
    int kept = errno;
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL || within(found, library)) { /* else: another tool's hook, which comes first as it would anyway */
        void *own = in_scope_of(caller, name);
        if (own != NULL)
            found = own;
        if (found == NULL)
            found = anywhere(library, name);
    }
    /* The address is kept, so the library has to stay. */
    if (found != NULL && dladdr(found, &info) != 0 && info.dli_fname != NULL)
        (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    (void)dlerror(); /* what was not found is no error of the engine's */
    errno = kept;
    return (uintptr_t)found;
}

static uintptr_t real_of(struct site *sites, const char *library, const char *name, const void *caller)
{
    uintptr_t address = (uintptr_t)caller, real;
    struct site *free_site = NULL;
    for (unsigned i = 0; i < PROBES; i++) {
        struct site *site = &sites[((address >> 2) + i) % SITES];
        uintptr_t there = atomic_load_explicit(&site->caller, memory_order_acquire);
        if (there == address && (real = atomic_load_explicit(&site->real, memory_order_acquire)) != 0)
            return real;
        if (there == 0) {
            free_site = site;
            break;
        }
    }
    real = find(library, name, caller); /* a full table: correct, but each time anew */
    uintptr_t none = 0;
    if (real != 0 && free_site != NULL && atomic_compare_exchange_strong(&free_site->caller, &none, address))
        atomic_store_explicit(&free_site->real, real, memory_order_release);
    return real;
}

/* Within a hooked call: a runtime call that reaches the driver's is one attempt. Initial-exec: reading a variable of
 * the other kind may allocate. */
static _Thread_local int depth __attribute__((tls_model("initial-exec")));

#define HOOK(library, name, parameters, arguments)                                                                     \
    int name parameters;                                                                                               \
    int name parameters                                                                                                \
    {                                                                                                                  \
        static struct site sites[SITES];                                                                               \
        uintptr_t real = real_of(sites, library, #name, __builtin_return_address(0));                                  \
        if (real == 0)                                                                                                 \
            return NO_CUDA;                                                                                            \
        if (depth != 0 || !counting())                                                                                 \
            return ((int(*) parameters)real)arguments;                                                                 \
        depth = 1;                                                                                                     \
        uint64_t begin = now_ns();                                                                                     \
        int code = ((int(*) parameters)real)arguments;                                                                 \
        uint64_t end = now_ns();                                                                                       \
        depth = 0;                                                                                                     \
        count(code, bytes, end - begin);                                                                               \
        return code;                                                                                                   \
    }

#define RUNTIME "libcudart"
#define DRIVER "libcuda.so"

HOOK(RUNTIME, cudaHostAlloc, (void **host, size_t bytes, unsigned flags), (host, bytes, flags))
HOOK(RUNTIME, cudaMallocHost, (void **host, size_t bytes), (host, bytes))
HOOK(RUNTIME, cudaHostRegister, (void *host, size_t bytes, unsigned flags), (host, bytes, flags))
HOOK(DRIVER, cuMemHostAlloc, (void **host, size_t bytes, unsigned flags), (host, bytes, flags))
HOOK(DRIVER, cuMemAllocHost_v2, (void **host, size_t bytes), (host, bytes))
HOOK(DRIVER, cuMemAllocHost, (void **host, unsigned bytes), (host, bytes)) /* CUDA before 3.2: 32 bits of size */
HOOK(DRIVER, cuMemHostRegister_v2, (void *host, size_t bytes, unsigned flags), (host, bytes, flags))
HOOK(DRIVER, cuMemHostRegister, (void *host, size_t bytes, unsigned flags), (host, bytes, flags))
