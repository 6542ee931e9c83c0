// SPDX-License-Identifier: Apache-2.0
#include "feedback.h"

/* Into its place by arrival. Answers that were computed through are noted where they leave, and those from
 * near hosts overtake those from far ones; of two that arrive at once, the first noted stays first.
 */
static void enqueue(struct pending *pending, struct queue *arriving, uint32_t place)
{
	uint32_t before = arriving->tail;

	while (before && pending[before].feedback.arrival_ns > pending[place].feedback.arrival_ns)
		before = pending[before].previous;
	pending[place].previous = before;
	pending[place].next = before ? pending[before].next : arriving->head;
	if (before)
		pending[before].next = place;
	else
		arriving->head = place;
	if (pending[place].next)
		pending[pending[place].next].previous = place;
	else
		arriving->tail = place;
}

static int grow_pending(struct engine *engine)
{
	uint32_t capacity = 2 * engine->pending_capacity;
	void *larger = realloc(engine->pending, (size_t)capacity * sizeof(*engine->pending));

	if (!larger) {
		PyErr_NoMemory();
		return -1;
	}
	engine->pending = larger;
	engine->pending_capacity = capacity;
	return 0;
}

int feedback_read(struct engine *engine)
{
	const struct feedback *ring = engine->feedback.buf;
	uint64_t written = engine_head(engine)->feedback_written;
	uint64_t taken = engine->feedback_taken;

	if (written - taken > FEEDBACK_CAPACITY) {
		PyErr_Format(PyExc_RuntimeError, "the fabric noted %llu answers in one period, more than %u",
			     (unsigned long long)(written - taken), FEEDBACK_CAPACITY);
		return -1;
	}
	engine->feedback_taken = engine_take(engine, &engine_head(engine)->feedback_written, written);
	engine->heard += written - taken;
	for (uint64_t i = taken; i < written; i++) {
		const struct feedback *heard = &ring[i & (FEEDBACK_CAPACITY - 1)];
		uint32_t place = engine->pending_free;
		struct queue *arriving;

		if (heard->source >= engine->host_count || heard->destination >= engine->host_count) {
			PyErr_SetString(PyExc_RuntimeError,
					"the fabric noted an answer of hosts that there are not");
			return -1;
		}
		if (place) {
			engine->pending_free = engine->pending[place].next;
		} else {
			if (engine->pending_used == engine->pending_capacity && grow_pending(engine))
				return -1;
			place = engine->pending_used++;
		}
		arriving = &engine->arriving[heard->source];
		engine->pending[place].feedback = *heard;
		enqueue(engine->pending, arriving, place);
	}
	return 0;
}
