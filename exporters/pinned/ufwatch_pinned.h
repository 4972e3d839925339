/* What the parts of the interposer know of each other. Nothing of this is seen outside the library. */
#ifndef UFWATCH_PINNED_H
#define UFWATCH_PINNED_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { OUT_OF_MEMORY, INVALID_VALUE, ALREADY_REGISTERED, NOT_SUPPORTED, NO_DEVICE, OPERATING_SYSTEM, OTHER, CODES };

/* Since the writer began. Bytes are of the successes, the time is of all attempts. */
struct totals {
    uint64_t attempts, bytes, nanoseconds, failed[CODES];
};

/* counting.c: the counts, and the thread that writes them. */
uint64_t now_ns(void); /* monotonic */
bool counting(void);   /* whether this process has anywhere to write to */
void count(int code, uint64_t bytes, uint64_t nanoseconds);

/* textfile.c: the file, for the writer thread alone. */
extern char directory[PATH_MAX - 64];
void begin_file(void);                                       /* a new name, for a new writer */
bool write_file(const struct totals *now, int64_t start_us); /* false: not written, to be tried again */

#pragma GCC visibility pop
#endif
