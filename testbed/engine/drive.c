// SPDX-License-Identifier: Apache-2.0
/* What the engine does at each wake; engine.h says how it works. */
#include "engine.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "feedback.h"
#include "hosts.h"
#include "records.h"

#define SECOND_NS      1000000000ULL
#define PROGRESS_STEPS 50

static void sleep_until(uint64_t when_ns)
{
	struct timespec when = {.tv_sec = (time_t)(when_ns / SECOND_NS),
				.tv_nsec = (long)(when_ns % SECOND_NS)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

static void report_progress(struct engine *engine, uint64_t time_ns, uint64_t *reported)
{
	uint64_t delivered = engine_delivered(engine);
	uint64_t step = delivered * PROGRESS_STEPS / engine->expected_packets;
	char line[128];
	ssize_t length;

	if (engine->progress_fd < 0 || step <= *reported)
		return;
	*reported = step;
	/* Not dprintf: it seeks first, and a system call that fails moves the clock by a microsecond. */
	length = snprintf(line, sizeof(line), "@progress %llu %llu %llu\n",
			  (unsigned long long)(time_ns - engine->epoch_ns), (unsigned long long)delivered,
			  (unsigned long long)engine->expected_packets);
	/* A line that is lost is lost: the next one follows. */
	length = write(engine->progress_fd, line, (size_t)length);
	(void)length;
}

/* Without a word for so long, many times the linger, a switch that is a process has dropped what is missing.
 */
#define LONG_LINGER 64

/* How long nothing must have been heard of, for the phase to be over: what is missing may yet be somewhere.
 */
static uint64_t linger_ns(const struct engine *engine)
{
	const struct record_head *noted = engine_head(engine);
	bool all_came =
		noted->came_packets - engine->came_before == engine->sent_packets + engine->background_sent &&
		noted->acks + noted->nacks == engine->heard;

	return all_came ? engine->linger_ns : LONG_LINGER * engine->linger_ns;
}

/* Whether all is done that can be: acknowledged, or without a transport arrived or dropped; and nothing is
 * left on the links that the next phase could meet.
 */
static bool is_complete(const struct engine *engine, uint64_t wake_ns)
{
	const struct record_head *noted = engine_head(engine);

	if (engine->last_far_end_ns >= wake_ns || noted->last_ns >= wake_ns ||
	    noted->feedback_written != engine->feedback_taken)
		return false;
	if (engine->late_records && (engine->last_far_end_ns + linger_ns(engine) >= wake_ns ||
				     noted->last_ns + linger_ns(engine) >= wake_ns))
		return false;
	if (engine_has_transport(engine))
		return engine->done_flows == engine->flow_count;
	return engine->sent_packets == engine->expected_packets &&
	       engine->background_sent == engine->background_packets;
}

/* A background ends with what it is the background of. In an open loop nobody knows when that is: there it
 * is sent in full.
 */
static void end_background(struct engine *engine)
{
	if (!engine_has_transport(engine) || engine->done_flows < engine->flow_count)
		return;
	for (uint32_t host = 0; host < engine->host_count; host++)
		sender_stop_background(&engine->senders[host]);
}

int engine_drive(struct engine *engine)
{
	uint64_t wake_ns = engine->epoch_ns - engine->lead_ns;
	uint64_t reported = 0;

	if (!engine->expected_packets)
		return 0;
	for (;; wake_ns += engine->period_ns) {
		uint64_t begin_ns = wake_ns + engine->lead_ns;

		sleep_until(wake_ns);
		if (PyErr_CheckSignals()) /* such as that a switch has died */
			return -1;
		hosts_pass_barriers(engine, begin_ns);
		if (feedback_read(engine) || hosts_run(engine, begin_ns, begin_ns + engine->period_ns) ||
		    records_read(engine))
			return -1;
		report_progress(engine, wake_ns, &reported);
		end_background(engine);
		if (is_complete(engine, wake_ns))
			return 0;
		if (wake_ns > engine->epoch_ns && wake_ns - engine->epoch_ns > engine->limit_ns) {
			PyErr_Format(PyExc_TimeoutError,
				     "%llu of %llu packets had arrived at the limit of virtual time",
				     (unsigned long long)engine_delivered(engine),
				     (unsigned long long)engine->expected_packets);
			return -1;
		}
	}
}

int engine_finish(struct engine *engine)
{
	if (records_measure_kept(engine))
		return -1;
	measure_finish(&engine->measure, engine->last_far_end_ns);
	if (engine->events && events_flush(engine->events)) {
		PyErr_SetFromErrno(PyExc_OSError);
		return -1;
	}
	return records_trace_kept(engine);
}
