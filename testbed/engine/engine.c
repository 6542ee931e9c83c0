// SPDX-License-Identifier: Apache-2.0
/* The engine: one process that sends for all hosts, and measures.
 *
 * It wakes once a period, offers every NIC what will leave it in the period after the next one, and reads
 * what the fabric recorded since. Frames carry the time at which they are ready, so that nothing depends
 * on when exactly the engine wakes: it is only ever early.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "entropy.h"
#include "fabric.h"
#include "inject.h"
#include "measure.h"
#include "sender.h"

#define SECOND_NS      1000000000ULL
#define PROGRESS_STEPS 50
#define MAX_SOCKETS    64

struct engine {
	/* From Python. */
	Py_buffer flows, byte_ns, start_ns, propagation_ns, head, records;
	uint32_t host_count, port_count, mtu_bytes, seed;
	enum discipline discipline;
	enum balancing balancing;
	uint64_t period_ns, limit_ns, bucket_ns, slot_ns;
	int ifindex, sockets, progress_fd, trace_fd;
	/* Its own. */
	uint64_t epoch_ns; /* the common start */
	uint64_t expected_packets, sent_packets, packet_hops, last_far_end_ns;
	uint64_t delivered_before;
	struct sender *senders;
	struct sender_flow *flow_storage;
	struct heap_entry *heap_storage;
	struct inject *inject;
	struct measure measure;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t when_ns)
{
	struct timespec when = {.tv_sec = (time_t)(when_ns / SECOND_NS),
				.tv_nsec = (long)(when_ns % SECOND_NS)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

static struct record_head *head(const struct engine *engine)
{
	return engine->head.buf;
}

/* ---- one wake ---- */

static int send_until(struct engine *engine, uint64_t horizon_ns)
{
	for (uint32_t host = 0; host < engine->host_count; host++) {
		struct sender *sender = &engine->senders[host];
		/* Neighbours share a socket: a batch ends where the socket changes. */
		int socket = (int)(host * (uint32_t)engine->sockets / engine->host_count);

		while (sender_next_ns(sender) < horizon_ns) {
			struct packet packet;

			sender_take(sender, &packet);
			if (inject_packet(engine->inject, socket, &packet,
					  entropy_value(engine->balancing, engine->seed, packet.source,
							packet.destination, packet.psn))) {
				PyErr_SetFromErrno(PyExc_OSError);
				return -1;
			}
			engine->sent_packets++;
		}
	}
	if (inject_flush(engine->inject)) {
		PyErr_SetFromErrno(PyExc_OSError);
		return -1;
	}
	return 0;
}

static int trace(struct engine *engine, const void *records, size_t bytes)
{
	const char *next = records;

	while (engine->trace_fd >= 0 && bytes) {
		ssize_t n = write(engine->trace_fd, next, bytes);

		if (n < 0 && errno != EINTR) {
			PyErr_SetFromErrno(PyExc_OSError);
			return -1;
		}
		if (n > 0) {
			next += n;
			bytes -= (size_t)n;
		}
	}
	return 0;
}

static int read_records(struct engine *engine)
{
	const struct record *ring = engine->records.buf;
	uint64_t written = head(engine)->written;

	if (written > RECORD_CAPACITY) {
		PyErr_Format(PyExc_RuntimeError, "the fabric wrote %llu records in one period, more than %u",
			     (unsigned long long)written, RECORD_CAPACITY);
		return -1;
	}
	/* From the start each time, so that the records in use stay in the processor's cache. No packet can
	 * move while this runs: virtual time stands still.
	 */
	head(engine)->written = 0;
	engine->packet_hops += written;
	for (uint64_t i = 0; i < written; i++) {
		const struct record *record = &ring[i];

		if (record->far_end_ns > engine->last_far_end_ns)
			engine->last_far_end_ns = record->far_end_ns;
		if (measure_record(&engine->measure, record)) {
			PyErr_NoMemory();
			return -1;
		}
	}
	return trace(engine, ring, written * sizeof(*ring));
}

static void report_progress(struct engine *engine, uint64_t time_ns, uint64_t *reported)
{
	uint64_t delivered = head(engine)->delivered_packets - engine->delivered_before;
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

static int drive(struct engine *engine)
{
	uint64_t wake_ns = engine->epoch_ns - engine->period_ns;
	uint64_t reported = 0;

	if (!engine->expected_packets)
		return 0;
	for (;; wake_ns += engine->period_ns) {
		sleep_until(wake_ns);
		if (send_until(engine, wake_ns + 2 * engine->period_ns) || read_records(engine))
			return -1;
		report_progress(engine, wake_ns, &reported);
		if (head(engine)->delivered_packets - engine->delivered_before >= engine->expected_packets)
			return 0;
		/* All that was sent has arrived or was dropped: without recovery, waiting brings nothing. */
		if (engine->sent_packets == engine->expected_packets && engine->last_far_end_ns < wake_ns)
			return 0;
		if (wake_ns - engine->epoch_ns > engine->limit_ns && wake_ns > engine->epoch_ns) {
			PyErr_Format(PyExc_TimeoutError,
				     "%llu of %llu packets had arrived at the limit of virtual time",
				     (unsigned long long)(head(engine)->delivered_packets -
							  engine->delivered_before),
				     (unsigned long long)engine->expected_packets);
			return -1;
		}
	}
}

/* ---- set-up ---- */

static int prepare(struct engine *engine)
{
	const struct flow *flows = engine->flows.buf;
	size_t count = (size_t)engine->flows.len / sizeof(*flows);
	const uint64_t *byte_ns = engine->byte_ns.buf, *start_ns = engine->start_ns.buf;
	size_t first = 0;

	engine->senders = calloc(engine->host_count, sizeof(*engine->senders));
	engine->flow_storage = calloc(count + 1, sizeof(*engine->flow_storage));
	engine->heap_storage = calloc(count + 1, sizeof(*engine->heap_storage));
	if (!engine->senders || !engine->flow_storage || !engine->heap_storage) {
		PyErr_NoMemory();
		return -1;
	}
	head(engine)->written = 0;
	head(engine)->late_packets = 0;
	engine->delivered_before = head(engine)->delivered_packets;
	engine->epoch_ns = (now_ns() / SECOND_NS + 2) * SECOND_NS;
	for (uint32_t host = 0; host < engine->host_count; host++) {
		size_t last = first;

		for (; last < count && flows[last].source == host; last++)
			engine->expected_packets += flows[last].packets;
		sender_init(&engine->senders[host], engine->discipline, flows + first,
			    (uint32_t)(last - first), engine->epoch_ns + start_ns[host], byte_ns[host],
			    engine->mtu_bytes, engine->flow_storage + first, engine->heap_storage + first);
		first = last;
	}
	if (first != count) {
		PyErr_SetString(PyExc_ValueError, "flows must be sorted by source");
		return -1;
	}
	if (measure_init(&engine->measure, engine->port_count, engine->host_count, engine->propagation_ns.buf,
			 engine->epoch_ns, engine->bucket_ns, engine->slot_ns)) {
		PyErr_NoMemory();
		return -1;
	}
	engine->inject = inject_open(engine->ifindex, engine->sockets);
	if (!engine->inject) {
		PyErr_SetFromErrno(PyExc_OSError);
		return -1;
	}
	/* Slack 1 ns: a timer otherwise may be late by 50 us. */
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	return 0;
}

static void release(struct engine *engine)
{
	Py_buffer *buffers[] = {&engine->flows,          &engine->byte_ns, &engine->start_ns,
				&engine->propagation_ns, &engine->head,    &engine->records};

	for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++)
		if (buffers[i]->obj)
			PyBuffer_Release(buffers[i]);
	if (engine->inject)
		inject_close(engine->inject);
	free(engine->senders);
	free(engine->flow_storage);
	free(engine->heap_storage);
	measure_free(&engine->measure);
}

/* ---- what Python sees ---- */

static PyObject *results(struct engine *engine)
{
	const struct measure *measure = &engine->measure;
	size_t cells = (size_t)measure->port_count * MEASURE_BUCKETS;
	uint64_t *deepest = malloc(measure->port_count * sizeof(*deepest));
	PyObject *dict;

	if (!deepest)
		return PyErr_NoMemory();
	for (uint32_t port = 0; port < measure->port_count; port++)
		deepest[port] = measure->ports[port].max_queue_bytes;
	dict = Py_BuildValue(
		"{s:K,s:K,s:K,s:K,s:K,s:K,s:y#,s:y#,s:y#}", "epoch_ns", (unsigned long long)engine->epoch_ns,
		"sent_packets", (unsigned long long)engine->sent_packets, "packet_hops",
		(unsigned long long)engine->packet_hops, "late_packets",
		(unsigned long long)head(engine)->late_packets, "total_queue_max_bytes",
		(unsigned long long)measure->max_total_bytes, "bucket_ns",
		(unsigned long long)measure->bucket_ns, "port_queue_max_bytes", deepest,
		(Py_ssize_t)(measure->port_count * sizeof(*deepest)), "series_queue_bytes",
		measure->series_queue_bytes, (Py_ssize_t)(cells * sizeof(*measure->series_queue_bytes)),
		"series_sent_bytes", measure->series_sent_bytes,
		(Py_ssize_t)(cells * sizeof(*measure->series_sent_bytes)));
	free(deepest);
	return dict;
}

static PyObject *engine_run(PyObject *self, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"flows",       "byte_ns",   "start_ns",  "propagation_ns",
				"head",        "records",   "mtu_bytes", "seed",
				"discipline",  "balancing", "period_ns", "limit_ns",
				"bucket_ns",   "slot_ns",   "ifindex",   "sockets",
				"progress_fd", "trace_fd",  NULL};
	struct engine engine = {0};
	unsigned long long period_ns, limit_ns, bucket_ns, slot_ns;
	PyObject *dict = NULL;
	int discipline, balancing;

	(void)self;
	if (!PyArg_ParseTupleAndKeywords(args, keywords, "y*y*y*y*y*y*IIiiKKKKiiii", names, &engine.flows,
					 &engine.byte_ns, &engine.start_ns, &engine.propagation_ns,
					 &engine.head, &engine.records, &engine.mtu_bytes, &engine.seed,
					 &discipline, &balancing, &period_ns, &limit_ns, &bucket_ns, &slot_ns,
					 &engine.ifindex, &engine.sockets, &engine.progress_fd,
					 &engine.trace_fd))
		goto out;
	engine.discipline = (enum discipline)discipline;
	engine.balancing = (enum balancing)balancing;
	engine.period_ns = period_ns;
	engine.limit_ns = limit_ns;
	engine.bucket_ns = bucket_ns;
	engine.slot_ns = slot_ns;
	engine.host_count = (uint32_t)(engine.byte_ns.len / (Py_ssize_t)sizeof(uint64_t));
	engine.port_count = (uint32_t)(engine.propagation_ns.len / (Py_ssize_t)sizeof(uint32_t));
	if (engine.start_ns.len != engine.byte_ns.len ||
	    engine.records.len < (Py_ssize_t)(RECORD_CAPACITY * sizeof(struct record)) ||
	    engine.head.len < (Py_ssize_t)sizeof(struct record_head) || engine.sockets < 1 ||
	    engine.sockets > MAX_SOCKETS || !period_ns || !bucket_ns || !slot_ns) {
		PyErr_SetString(PyExc_ValueError, "an argument has the wrong size or is out of range");
		goto out;
	}
	if (prepare(&engine) || drive(&engine))
		goto out;
	measure_finish(&engine.measure, engine.last_far_end_ns);
	dict = results(&engine);
out:
	release(&engine);
	return dict;
}

static PyMethodDef methods[] = {
	{"run", (PyCFunction)(void (*)(void))engine_run, METH_VARARGS | METH_KEYWORDS,
	 "Sends all flows and measures until the last packet has arrived; see testbed/engine/__init__.py."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "_engine", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__engine(void)
{
	return PyModule_Create(&module);
}
