/* Preloaded beside the interposer: tells how it writes in place. SPY_LOG gets a line per pwrite, `<bytes> <offset>
 * <sequence number or -> <result>`; the writes whose size is SPY_SIZE and whose turn is in SPY_FAIL ("s" cut short, "f"
 * refused, "." let through, one letter a write, then all let through) go wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    static size_t turn;
    const char *fail = getenv("SPY_FAIL"), *only = getenv("SPY_SIZE");
    FILE *log = fopen(getenv("SPY_LOG"), "a");
    ssize_t result;
    char how = '.';
    if (fail != NULL && (only == NULL || (size_t)atol(only) == size) && turn < strlen(fail))
        how = fail[turn++];
    if (how == 'f') {
        errno = EIO;
        result = -1;
    } else
        result = syscall(SYS_pwrite64, fd, data, how == 's' ? size / 2 : size, offset);
    const char *number = size == 20 ? data : memmem(data, size, "# seq ", 6);
    fprintf(log, "%zu %ld %.20s %zd\n", size, (long)offset, size == 20 || number == NULL ? number : number + 6, result);
    fclose(log);
    return result;
}
