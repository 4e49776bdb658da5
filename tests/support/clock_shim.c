/* A wall clock that a test can step. Built as a shared object and loaded into a server with
 * LD_PRELOAD.
 *
 * The file named by RLOCK_TEST_CLOCK holds one 64-bit number, the microseconds to add to the wall
 * clock. Clocks that never step are not changed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Other libraries read the time before the constructor below has run. */
static const volatile int64_t none = 0;
static const volatile int64_t *step_us = &none;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("RLOCK_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) abort();
    void *shared = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) abort();
    step_us = shared;
}

static int64_t wall_clock_us(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + *step_us;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, clock, out);
    int64_t us = wall_clock_us();
    out->tv_sec = us / 1000000;
    out->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    int64_t us = wall_clock_us();
    out->tv_sec = us / 1000000;
    out->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *out) {
    time_t seconds = wall_clock_us() / 1000000;
    if (out) *out = seconds;
    return seconds;
}

/* Valkey 8.1 and newer load modules with RTLD_DEEPBIND, which would bypass this file. */
void *dlopen(const char *path, int mode) {
    void *(*next)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
    return next(path, mode & ~RTLD_DEEPBIND);
}
