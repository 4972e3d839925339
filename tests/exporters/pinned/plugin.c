/* What an extension module is: opened by the program, linked to a CUDA runtime of its own. */
#include <stddef.h>

int cudaHostAlloc(void **host, size_t bytes, unsigned flags);

int pin(void **host, size_t bytes);
int pin(void **host, size_t bytes)
{
    volatile int code = cudaHostAlloc(host, bytes, 0); /* no tail call: the caller is told by where it returns to */
    return code;
}
