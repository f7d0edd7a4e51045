/* Preloaded, it makes the wall clock of a process wrong, as WILD_CLOCK says: "jumps" by an hour ahead and back ten
 * times a second, "frozen", or "ahead" by an hour. The monotonic clock stays right. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long read_clock(clockid_t clock, struct timespec *now) { return syscall(SYS_clock_gettime, clock, now); }

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static struct timespec first;
    long failed = read_clock(clock, now);
    const char *mode = getenv("WILD_CLOCK");
    if (failed || clock != CLOCK_REALTIME || mode == NULL) return failed;
    if (strcmp(mode, "frozen") == 0) {
        if (first.tv_sec == 0) first = *now;
        *now = first;
    } else if (strcmp(mode, "ahead") == 0) {
        now->tv_sec += 3600;
    } else {
        struct timespec steady;
        read_clock(CLOCK_MONOTONIC, &steady);
        switch ((steady.tv_sec * 10 + steady.tv_nsec / 100000000) % 3) {
        case 0: now->tv_sec += 3600; break;
        case 1: now->tv_sec -= 3600; break;
        }
    }
    return 0;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (where) *where = at.tv_sec;
    return at.tv_sec;
}
