/* The file: pinned-<12 hex>.prom, in the in-place format of ufwatch/decode/textfile_format.py. */
#include "ufwatch_pinned.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STALE_SECONDS 3600

char directory[PATH_MAX - 64];
static char path[PATH_MAX], temporary[PATH_MAX];
static uint64_t sequence; /* of the last write, even */
static dev_t device;      /* the file as it was created */
static ino_t inode;       /* 0: not yet */
static char text[2048];
static int sequence_at, length; /* both the same at each render: every number has a fixed width */

static void render(uint64_t number, const struct totals *now, int64_t start_us)
{
    struct timespec wall;
    char written[32], started[32], seconds[32];
    clock_gettime(CLOCK_REALTIME, &wall);
    snprintf(written, sizeof written, "%" PRId64 ".%06ld", (int64_t)wall.tv_sec, wall.tv_nsec / 1000);
    snprintf(started, sizeof started, "%" PRId64 ".%06" PRId64, start_us / 1000000, start_us % 1000000);
    snprintf(seconds, sizeof seconds, "%" PRIu64 ".%09" PRIu64, now->nanoseconds / 1000000000u,
             now->nanoseconds % 1000000000u);
#define FAILURES "ufwatch_pinned_alloc_failures_total"
    sequence_at = snprintf(text, sizeof text, "# ufwatch %-20s %-20s\n# seq ", written, started);
    length = sequence_at;
    length += snprintf(text + length, sizeof text - (size_t)length,
                       "%020" PRIu64 "\n"
                       "ufwatch_pinned_alloc_attempts_total %-20" PRIu64 "\n"
                       FAILURES "{code=\"out_of_memory\"} %-20" PRIu64 "\n"
                       FAILURES "{code=\"invalid_value\"} %-20" PRIu64 "\n"
                       FAILURES "{code=\"already_registered\"} %-20" PRIu64 "\n"
                       FAILURES "{code=\"not_supported\"} %-20" PRIu64 "\n"
                       FAILURES "{code=\"no_device\"} %-20" PRIu64 "\n"
                       FAILURES "{code=\"operating_system\"} %-20" PRIu64 "\n"
                       FAILURES "{code=\"other\"} %-20" PRIu64 "\n"
                       "ufwatch_pinned_alloc_bytes_total %-20" PRIu64 "\n"
                       "ufwatch_pinned_alloc_seconds_total %-22s\n",
                       number, now->attempts, now->failed[OUT_OF_MEMORY], now->failed[INVALID_VALUE],
                       now->failed[ALREADY_REGISTERED], now->failed[NOT_SUPPORTED], now->failed[NO_DEVICE],
                       now->failed[OPERATING_SYSTEM], now->failed[OTHER], now->bytes, seconds);
}

static bool is_ours(const char *name) /* pinned-<12 hex>.prom */
{
    return strncmp(name, "pinned-", 7) == 0 && strspn(name + 7, "0123456789abcdef") == 12 &&
           strcmp(name + 19, ".prom") == 0;
}

struct entry { /* what getdents64 gives */
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static void remove_if_stale(int listing, const char *name)
{
    char head[64] = "";
    long long written;
    int fd = openat(listing, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (pread(fd, head, sizeof head - 1, 0) > 0 && sscanf(head, "# ufwatch %lld", &written) == 1 &&
        written < (long long)time(NULL) - STALE_SECONDS)
        unlinkat(listing, name, 0);
    close(fd);
}

/* Removes files of this library whose writer has been gone for an hour. Judged by the heartbeat, never by a pid; one
 * removed in error (its clock is off) is made again by its writer under the same name and start time.
 * Not by opendir, which allocates: a fork just then leaves the child an allocator that is locked for ever, where the
 * allocator does not take care of forks as glibc's does. */
static void remove_stale(void)
{
    static _Alignas(struct entry) char entries[4096];
    int listing = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long bytes;
    if (listing < 0)
        return;
    while ((bytes = syscall(SYS_getdents64, listing, entries, sizeof entries)) > 0)
        for (long at = 0; at < bytes;) {
            const struct entry *found = (const struct entry *)(entries + at);
            if (is_ours(found->name))
                remove_if_stale(listing, found->name);
            at += found->length;
        }
    close(listing);
}

/* The name is unique among containers that share the directory; a pid is not. */
void begin_file(void)
{
    uint64_t id;
    if (getrandom(&id, sizeof id, GRND_NONBLOCK) != sizeof id)
        id = (now_ns() ^ (uint64_t)getpid() << 24 ^ (uint64_t)(uintptr_t)&id) * 0x9E3779B97F4A7C15u >> 8;
    id &= 0xFFFFFFFFFFFFu;
    sequence = 0;
    inode = 0; /* a forked child has its parent's */
    snprintf(path, sizeof path, "%s/pinned-%012" PRIx64 ".prom", directory, id);
    snprintf(temporary, sizeof temporary, "%s/.pinned-%012" PRIx64 ".tmp", directory, id);
}

/* A whole new file under the name and start time that this writer has had from the start: to the reader it is the same
 * writer, so nothing is taken twice. */
static bool create(const struct totals *now, int64_t start_us)
{
    struct stat status;
    mkdir(directory, 0755);
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    render(sequence += 2, now, start_us);
    bool good = write(fd, text, (size_t)length) == length && fstat(fd, &status) == 0;
    good = close(fd) == 0 && good && rename(temporary, path) == 0;
    if (!good) {
        unlink(temporary);
        return false;
    }
    if (inode == 0)
        remove_stale();
    device = status.st_dev;
    inode = status.st_ino;
    return true;
}

/* By pwrite and not through a mapping: a mapped page raises SIGBUS in the engine when somebody cuts the file off or
 * the disk is full. Opened anew each time: a descriptor kept would, in a program that closes them all, soon be another
 * file's. A reader cannot tell either from a mapping. */
bool write_file(const struct totals *now, int64_t start_us)
{
    struct stat status;
    int fd = inode == 0 ? -1 : open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return create(now, start_us);
    /* Number of links: an inode number is soon given to another file. */
    if (fstat(fd, &status) != 0 || status.st_dev != device || status.st_ino != inode || status.st_nlink > 1 ||
        status.st_size != length) {
        close(fd);
        return create(now, start_us);
    }
    render(sequence + 1, now, start_us);
    bool good = pwrite(fd, text + sequence_at, 20, sequence_at) == 20;
    if (good) {
        ssize_t body = pwrite(fd, text, (size_t)length, 0);
        good = body == length;
        /* A body refused whole has changed nothing; one cut short stays odd, and is written again. */
        if (good || body < 0) {
            char even[21];
            snprintf(even, sizeof even, "%020" PRIu64, sequence + 2);
            good = pwrite(fd, even, 20, sequence_at) == 20 && good;
        }
    }
    sequence += 2;
    return close(fd) == 0 && good;
}
