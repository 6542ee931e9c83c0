// SPDX-License-Identifier: Apache-2.0
/* Preloaded into the programs of `incastfree exec`: a program that polls must not stop the clock.
 *
 * In virtual time nothing but sleeping moves the clock, and reading it a nanosecond. A program that asks for
 * the time again and again until something has come would ask a million times a millisecond; one that waits
 * for events and does not take what is there (PyTorch's store, once its server has gone) would go round for
 * ever. After PATIENCE readings or events, each of which found the clock hardly moved, this one sleeps for a
 * moment in its place: packets come in meanwhile, to the nanosecond. At the dilation that exec chooses
 * PAUSE_NS is a nanosecond of fabric time; a program that goes on polling sleeps longer. A program that does
 * not poll never gets here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE    200
#define AGAIN       4
#define PART        64 /* of the time that it has polled already, a pause may be longer by */
#define HARDLY_NS   100
#define PAUSE_NS    10000
#define NS_A_SECOND 1000000000LL

static __thread long long read_ns, waited_ns;
static __thread int readings;

/* One more reading, of the monotonic clock. */
static void impatience(long long now_ns)
{
	long long pause_ns = PAUSE_NS + waited_ns / PART;
	struct timespec pause = {pause_ns / NS_A_SECOND, pause_ns % NS_A_SECOND};
	int error = errno;

	if (now_ns - read_ns >= HARDLY_NS)
		readings = waited_ns = 0;
	readings++;
	read_ns = now_ns;
	if (readings < PATIENCE)
		return;
	/* Once it is known to poll, it sleeps after a few readings, until the clock has moved by other means.
	 */
	readings = PATIENCE - AGAIN;
	waited_ns += pause_ns;
	read_ns += pause_ns;
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
	errno = error;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	struct timespec now;
	int result = (int)syscall(SYS_clock_gettime, clock, time);

	if (clock == CLOCK_MONOTONIC && !result)
		now = *time;
	else
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	impatience(now.tv_sec * NS_A_SECOND + now.tv_nsec);
	return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	time->tv_sec = now.tv_sec;
	time->tv_usec = now.tv_nsec / 1000;
	return 0;
}

/* After a wait that found something. */
static int found(int ready)
{
	struct timespec now;

	if (ready > 0) {
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
		impatience(now.tv_sec * NS_A_SECOND + now.tv_nsec);
	}
	return ready;
}

int poll(struct pollfd *files, nfds_t count, int timeout_ms)
{
	static int (*real)(struct pollfd *, nfds_t, int);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "poll");
	return found(real(files, count, timeout_ms));
}

/* What poll is to programs that were compiled with _FORTIFY_SOURCE. */
int __poll_chk(struct pollfd *files, nfds_t count, int timeout_ms, size_t bytes)
{
	static int (*real)(struct pollfd *, nfds_t, int, size_t);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "__poll_chk");
	return found(real(files, count, timeout_ms, bytes));
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms)
{
	static int (*real)(int, struct epoll_event *, int, int);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "epoll_wait");
	return found(real(epoll, events, most, timeout_ms));
}
