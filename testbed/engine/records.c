// SPDX-License-Identifier: Apache-2.0
#include "records.h"

#include <errno.h>
#include <unistd.h>

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

static int keep(struct engine *engine, const struct record *record)
{
	if (engine->kept_count == engine->kept_capacity) {
		size_t capacity = engine->kept_capacity ? 2 * engine->kept_capacity : 1024;
		struct record *larger = realloc(engine->kept, capacity * sizeof(*larger));

		if (!larger)
			return -1;
		engine->kept = larger;
		engine->kept_capacity = capacity;
	}
	engine->kept[engine->kept_count++] = *record;
	return 0;
}

int records_read(struct engine *engine)
{
	const struct record *ring = engine->records.buf;
	uint64_t written = engine_head(engine)->written;
	uint64_t taken = engine->records_taken;

	if (written - taken > RECORD_CAPACITY) {
		PyErr_Format(PyExc_RuntimeError, "the fabric wrote %llu records in one period, more than %u",
			     (unsigned long long)(written - taken), RECORD_CAPACITY);
		return -1;
	}
	engine->records_taken = engine_take(engine, &engine_head(engine)->written, written);
	engine->packet_hops += written - taken;
	for (uint64_t i = taken; i < written; i++) {
		const struct record *record = &ring[i & (RECORD_CAPACITY - 1)];

		if (record->far_end_ns > engine->last_far_end_ns)
			engine->last_far_end_ns = record->far_end_ns;
		if (engine->late_records ? keep(engine, record) : measure_record(&engine->measure, record)) {
			PyErr_NoMemory();
			return -1;
		}
	}
	return engine->late_records ? 0 : trace(engine, ring, written * sizeof(*ring));
}

/* By arrival, and of one port in the order of departure. */
static int compare_records(const void *left, const void *right)
{
	const struct record *a = left, *b = right;

	if (a->arrival_ns != b->arrival_ns)
		return a->arrival_ns < b->arrival_ns ? -1 : 1;
	return (a->far_end_ns > b->far_end_ns) - (a->far_end_ns < b->far_end_ns);
}

int records_measure_kept(struct engine *engine)
{
	if (engine->kept_count)
		qsort(engine->kept, engine->kept_count, sizeof(*engine->kept), compare_records);
	for (size_t i = 0; i < engine->kept_count; i++)
		if (measure_record(&engine->measure, &engine->kept[i])) {
			PyErr_NoMemory();
			return -1;
		}
	return 0;
}

int records_trace_kept(struct engine *engine)
{
	return trace(engine, engine->kept, engine->kept_count * sizeof(*engine->kept));
}
