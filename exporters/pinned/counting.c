/* The counts, which hooks only add to, and the one thread that writes them to the file. */
#include "ufwatch_pinned.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef TURN_NS /* the tests turn faster */
#define TURN_NS 1000000000u      /* how often the thread looks for new counts */
#endif
#define HEARTBEAT_NS 2000000000u /* the format asks for 5 s at most */
#define LAST_WRITE_NS 1000000000u /* how long the exit of the process waits for the last write at most */

enum { UNREAD, READING, OFF, IDLE, STARTING, RUNNING };
static _Atomic int state;                /* from IDLE on, calls are counted */
static _Atomic int64_t start_us;         /* unix time at which this writer began; 0: not yet */
static _Atomic bool in_use;              /* whether the file has been written once */
static _Atomic int writer_pid;           /* the process that has the thread */
static _Atomic uint64_t not_before;      /* a thread that could not be started is tried again then */
static _Atomic uint32_t asked, answered; /* the last write: its numbers, which are futexes too */

static struct {
    _Alignas(64) _Atomic uint64_t begun; /* updates begun = attempts; equal to `finished` when none is under way */
    _Atomic uint64_t finished;
    _Atomic uint64_t bytes, nanoseconds, failed[CODES];
} counts;

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int index_of(int code)
{
    switch (code) {
    case 1: return INVALID_VALUE;
    case 2: return OUT_OF_MEMORY;
    case 35: /* the runtime's "driver too old or absent" */
    case 100: return NO_DEVICE;
    case 304: return OPERATING_SYSTEM;
    case 712: return ALREADY_REGISTERED;
    case 801: return NOT_SUPPORTED;
    default: return OTHER;
    }
}

static void add(_Atomic uint64_t *count, uint64_t amount)
{
    /* Release: whoever sees this addition also sees that its update has begun (totals_of relies on it). */
    atomic_fetch_add_explicit(count, amount, memory_order_release);
}

/* Whether `now` is of one moment; if not, it is off by the calls that end just then, and never attempts < failures. */
static bool totals_of(struct totals *now)
{
    for (int look = 0; look < 200; look++) {
        uint64_t finished = atomic_load_explicit(&counts.finished, memory_order_acquire);
        now->bytes = atomic_load_explicit(&counts.bytes, memory_order_acquire);
        now->nanoseconds = atomic_load_explicit(&counts.nanoseconds, memory_order_acquire);
        for (int i = 0; i < CODES; i++)
            now->failed[i] = atomic_load_explicit(&counts.failed[i], memory_order_acquire);
        now->attempts = atomic_load_explicit(&counts.begun, memory_order_acquire);
        if (now->attempts == finished)
            return true;
        if (look < 100)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return false;
}

static void wait_for_change(_Atomic uint32_t *word, uint32_t seen, uint64_t nanoseconds)
{
    struct timespec most = {(time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &most, NULL, 0);
}

static void wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void *write_for_ever(void *unused)
{
    struct totals written, now;
    bool done = false;
    int unsteady = 0;
    uint64_t last = 0;
    prctl(PR_SET_NAME, "ufwatch-pinned", 0, 0, 0);
    memset(&written, 0, sizeof written);
    begin_file();
    for (;;) {
        uint32_t wanted = atomic_load(&asked);
        /* Counts in motion are not shown, unless they never come to rest or the process ends. */
        if (!totals_of(&now) && ++unsteady < 3 && wanted == 0)
            now = written;
        else
            unsteady = 0;
        if (!done || memcmp(&now, &written, sizeof now) != 0 || now_ns() - last >= HEARTBEAT_NS) {
            last = now_ns();
            done = write_file(&now, atomic_load(&start_us));
            if (done) {
                written = now;
                atomic_store(&in_use, true);
            }
        }
        atomic_store(&answered, wanted);
        wake(&answered);
        wait_for_change(&asked, wanted, TURN_NS);
    }
    return unused;
}

static bool start_thread(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    /* The engine's signals are for its own threads; SIGXFSZ of a write past RLIMIT_FSIZE stays blocked for ever. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, &attributes, write_for_ever, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

/* At the first hooked call of the process, and at the first after a fork. */
static void start_writer(void)
{
    int idle = IDLE;
    int kept = errno;
    if (now_ns() < atomic_load(&not_before) || !atomic_compare_exchange_strong(&state, &idle, STARTING))
        return;
    if (atomic_load(&start_us) == 0) {
        struct timespec wall;
        clock_gettime(CLOCK_REALTIME, &wall);
        atomic_store(&start_us, (int64_t)wall.tv_sec * 1000000 + wall.tv_nsec / 1000);
    }
    atomic_store(&not_before, now_ns() + 1000000000u);
    atomic_store(&writer_pid, getpid());
    atomic_store(&state, start_thread() ? RUNNING : IDLE);
    errno = kept;
}

/* Never takes a lock and never allocates, but for the call that starts the thread. */
void count(int code, uint64_t bytes, uint64_t nanoseconds)
{
    add(&counts.begun, 1);
    if (code == 0)
        add(&counts.bytes, bytes);
    else
        add(&counts.failed[index_of(code)], 1);
    add(&counts.nanoseconds, nanoseconds);
    add(&counts.finished, 1);
    if (atomic_load_explicit(&state, memory_order_acquire) == IDLE)
        start_writer();
}

/* The child has no writer thread, and counts that are its parent's: it begins a file of its own, at 0. */
static void begin_child(void)
{
    if (atomic_load(&state) < IDLE)
        return;
    memset(&counts, 0, sizeof counts);
    atomic_store(&start_us, 0);
    atomic_store(&not_before, 0);
    atomic_store(&asked, 0);
    atomic_store(&answered, 0);
    atomic_store(&in_use, false);
    atomic_store(&state, IDLE);
}

/* Read once: getenv is not safe beside a setenv later. */
__attribute__((constructor)) static void read_environment(void)
{
    int unread = UNREAD;
    if (!atomic_compare_exchange_strong(&state, &unread, READING))
        return;
    const char *wanted = secure_getenv("UFWATCH_EXPORT_DIR");
    size_t taken = 0;
    if (wanted == NULL || *wanted == '\0') {
        atomic_store(&state, OFF);
        return;
    }
    if (*wanted != '/') { /* the engine may change its directory */
        if (getcwd(directory, sizeof directory / 2) == NULL) {
            atomic_store(&state, OFF);
            return;
        }
        taken = strlen(directory);
        directory[taken++] = '/';
    }
    if (strlen(wanted) >= sizeof directory - taken || pthread_atfork(NULL, NULL, begin_child) != 0) {
        atomic_store(&state, OFF);
        return;
    }
    strcpy(directory + taken, wanted);
    atomic_store(&state, IDLE);
}

bool counting(void)
{
    if (atomic_load_explicit(&state, memory_order_acquire) == UNREAD)
        read_environment(); /* a hook that comes before our constructor */
    return atomic_load_explicit(&state, memory_order_acquire) >= IDLE;
}

/* The thread writes, this only waits: were the file system to hang, the exit of the engine does not. */
__attribute__((destructor)) static void write_last(void)
{
    if (atomic_load(&state) != RUNNING || atomic_load(&writer_pid) != getpid())
        return; /* no thread here; a raw clone() does not tell begin_child */
    uint64_t deadline = now_ns() + LAST_WRITE_NS;
    uint32_t mine = atomic_fetch_add(&asked, 1) + 1;
    wake(&asked);
    for (;;) {
        uint32_t seen = atomic_load(&answered);
        uint64_t now = now_ns();
        if (seen >= mine || now >= deadline)
            return;
        wait_for_change(&answered, seen, deadline - now);
    }
}

/* For exporters in the same process: 0 it does nothing here; 2 it counts, no file yet; 1 its file is in use. While it
 * is not 0, nobody else is to export pinned allocations. */
__attribute__((visibility("default"))) int ufwatch_pinned_active(void);
int ufwatch_pinned_active(void)
{
    return !counting() ? 0 : atomic_load(&in_use) ? 1 : 2;
}
