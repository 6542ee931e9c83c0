// SPDX-License-Identifier: Apache-2.0
/* Preloaded into the programs of `incastfree exec`: a program that polls must not stop the clock.
 *
 * In virtual time nothing but sleeping moves the clock, and reading it a nanosecond. A program that asks for
 * the time again and again until something has come would ask a million times a millisecond. After PATIENCE
 * readings, each of which found the clock hardly moved, this one sleeps for a moment in its place: packets
 * come in meanwhile, to the nanosecond. At the dilation that exec chooses PAUSE_NS is a nanosecond of fabric
 * time. A program that does not poll never gets here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE    200
#define AGAIN       4
#define HARDLY_NS   100
#define PAUSE_NS    10000
#define NS_A_SECOND 1000000000LL

static __thread long long read_ns;
static __thread int readings;

/* One more reading, of the monotonic clock. */
static void impatience(long long now_ns)
{
	struct timespec pause = {0, PAUSE_NS};
	int error = errno;

	readings = now_ns - read_ns < HARDLY_NS ? readings + 1 : 0;
	read_ns = now_ns;
	if (readings < PATIENCE)
		return;
	/* Once it is known to poll, it sleeps after a few readings, until the clock has moved by other means.
	 */
	readings = PATIENCE - AGAIN;
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
	read_ns += PAUSE_NS;
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
