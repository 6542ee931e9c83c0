// SPDX-License-Identifier: Apache-2.0
/* What the engine makes of its arguments before it starts, and frees in the end. */
#include "engine.h"

#include <sys/prctl.h>

#include "pace.h"

static int allocate(struct engine *engine, size_t count, size_t background_count)
{
	engine->background_storage = calloc(background_count + 1, sizeof(*engine->background_storage));
	engine->senders = calloc(engine->host_count, sizeof(*engine->senders));
	engine->flow_storage = aligned_alloc(CACHE_LINE_BYTES, (count + 1) * sizeof(*engine->flow_storage));
	engine->stage_storage =
		calloc((size_t)engine->stages.len / sizeof(struct stage) + 1, sizeof(*engine->stage_storage));
	engine->list_storage = calloc(count + 1, sizeof(*engine->list_storage));
	engine->place_storage = calloc(count + 1, sizeof(*engine->place_storage));
	engine->heap_storage = calloc(count + 1, sizeof(*engine->heap_storage));
	engine->flow_of = calloc((size_t)engine->host_count * engine->host_count, sizeof(*engine->flow_of));
	engine->arriving = calloc(engine->host_count, sizeof(*engine->arriving));
	engine->pending_capacity = 1024;
	engine->pending = calloc(engine->pending_capacity, sizeof(*engine->pending));
	engine->pending_used = 1;
	if (engine->balancing == RECYCLED_VALUES) {
		engine->reps = calloc(count + 1, sizeof(*engine->reps));
		if (!engine->reps)
			return -1;
	}
	return engine->background_storage && engine->senders && engine->flow_storage &&
			       engine->stage_storage && engine->list_storage && engine->place_storage &&
			       engine->heap_storage && engine->flow_of && engine->arriving && engine->pending
		       ? 0
		       : -1;
}

/* Between two packets of a flow that has no pace of its own: those of the others of its host. In turns of
 * bytes it is the mean over the packets of an ACK, as long as those may take.
 */
static uint64_t round_ns(const struct engine *engine, const struct flow *first, const struct flow *flow,
			 uint32_t of_host)
{
	const uint64_t *byte_ns = engine->byte_ns.buf;
	uint64_t bytes = 0, turns;

	if (engine->discipline != DEFICIT)
		return wire_time_ns(engine->mtu_bytes, byte_ns[flow->source]) * of_host;
	for (uint32_t i = 0; i < of_host; i++)
		bytes += first[i].quantum_bytes > engine->mtu_bytes ? first[i].quantum_bytes
								    : engine->mtu_bytes;
	/* So many turns may lie between the first of the packets of an ACK and the last. */
	turns = (engine->transport.ack_packets * engine->mtu_bytes + flow->quantum_bytes - 1) /
		flow->quantum_bytes;
	bytes = bytes * (turns + 1) / engine->transport.ack_packets;
	return (uint64_t)((double)bytes * (double)byte_ns[flow->source] / 4294967296.0);
}

static void prepare_flow(struct engine *engine, const struct flow *flow, size_t place, uint64_t pause_ns)
{
	const uint64_t *start_ns = engine->start_ns.buf;
	/* What its timeouts allow for; a DPU is yet to say. */
	uint32_t pace = engine->dpus.states ? DPU_FIRST_STEPS : flow->steps;

	engine->flow_of[flow->source * engine->host_count + flow->destination] = (uint32_t)place;
	engine->flow_storage[place] = (struct flow_state){
		.source = (uint16_t)flow->source,
		.destination = (uint16_t)flow->destination,
		.packets = flow->packets,
		.last_bytes = (uint16_t)flow->last_bytes,
		.open_loop = !engine_has_transport(engine),
		.ready_ns = engine->epoch_ns + start_ns[flow->source] + flow->ready_ns,
		.steps = engine->dpus.states ? DPU_FIRST_STEPS
			 : engine->rates_ns  ? flow->before_steps
					     : flow->steps,
		.ceiling_steps = flow->steps,
		.mtu_bytes = (uint16_t)engine->mtu_bytes,
		.window_bytes = INT64_MAX / 2,
		.first = engine->expected_packets,
		.gap_ns = pace ? pace_gap_ns(engine, flow->source, pace) : pause_ns,
		.quantum_bytes = flow->quantum_bytes,
	};
	engine->expected_packets += flow->packets;
}

/* Gives each host its flows. 0, or -1 with an exception. */
static int prepare_senders(struct engine *engine)
{
	const struct flow *flows = engine->flows.buf;
	const uint64_t *byte_ns = engine->byte_ns.buf;
	const double *windows = engine->windows.buf;
	uint32_t count = engine->flow_count;

	for (uint32_t host = 0, first = 0; host < engine->host_count; host++) {
		uint32_t last = first;

		while (last < count && flows[last].source == host)
			last++;
		for (uint32_t i = first; i < last; i++) {
			prepare_flow(engine, &flows[i], i,
				     round_ns(engine, &flows[first], &flows[i], last - first));
			if (engine->controls.kind != CONTROL_NONE &&
			    pace_govern(engine, &engine->flow_storage[i], windows[i]))
				return -1;
		}
		/* Rates that change on the way are the engine's to keep, one packet at a time. */
		sender_init(&engine->senders[host],
			    engine->discipline == PACED && (engine->rates_ns || engine->dpus.states)
				    ? SELF_PACED
			    : engine->controls.kind == CONTROL_RATE ? SELF_PACED
								    : engine->discipline,
			    engine->flow_storage + first, last - first, byte_ns[host],
			    engine->list_storage + first, engine->place_storage + first,
			    engine->heap_storage + first);
		if (host + 1 == engine->host_count && last != count) {
			PyErr_SetString(PyExc_ValueError, "flows must be sorted by source");
			return -1;
		}
		first = last;
	}
	return 0;
}

/* Gives each host its background flows. 0, or -1 with an exception. */
static int prepare_background(struct engine *engine)
{
	const struct background_flow *given = engine->background.buf;
	uint32_t count = (uint32_t)((size_t)engine->background.len / sizeof(*given)), first = 0;

	for (uint32_t i = 0; i < count; i++) {
		engine->background_storage[i] = (struct background){
			.given = given[i],
			.next_ns = engine->epoch_ns + given[i].ready_ns,
			.number = i,
			.mtu_bytes = engine->mtu_bytes,
		};
		engine->background_packets += given[i].packets;
	}
	for (uint32_t host = 0; host < engine->host_count; host++) {
		uint32_t last = first;

		while (last < count && given[last].source == host)
			last++;
		sender_add_background(&engine->senders[host], engine->background_storage + first,
				      last - first);
		first = last;
	}
	if (first != count) {
		PyErr_SetString(PyExc_ValueError, "background flows must be sorted by source");
		return -1;
	}
	return 0;
}

/* Gives each host its stages. 0, or -1 with an exception. */
static int prepare_stages(struct engine *engine)
{
	const struct stage *given = engine->stages.buf;
	uint32_t count = (uint32_t)((size_t)engine->stages.len / sizeof(*given)), first = 0;

	if (engine->discipline != STAGED)
		return 0;
	for (uint32_t i = 0; i < count; i++)
		if (given[i].number >= engine->stage_numbers)
			engine->stage_numbers = given[i].number + 1;
	engine->stage_ends = calloc(engine->stage_numbers + 1, sizeof(*engine->stage_ends));
	if (!engine->stage_ends) {
		PyErr_NoMemory();
		return -1;
	}
	for (uint32_t host = 0; host < engine->host_count; host++) {
		struct sender *sender = &engine->senders[host];
		uint32_t last = first;

		for (; last < count && given[last].source == host; last++) {
			const struct stage *stage = &given[last];
			uint32_t place =
				stage->destination < engine->host_count
					? engine->flow_of[host * engine->host_count + stage->destination]
					: 0;
			const struct flow_state *flow = &engine->flow_storage[place];
			uint32_t *before = &engine->place_storage[place]; /* nothing else uses it */

			if (!engine->flow_count || flow->source != host ||
			    flow->destination != stage->destination || stage->packets > flow->packets ||
			    stage->packets <= *before) {
				PyErr_SetString(PyExc_ValueError, "a stage does not fit its flow");
				return -1;
			}
			engine->stage_storage[last] = (struct sender_stage){
				.flow = (uint32_t)(flow - sender->flows),
				.packets = stage->packets,
				.number = stage->number,
				.start_ns = engine->epoch_ns + stage->start_ns,
			};
			engine->stage_ends[stage->number] += stage->packets - *before;
			*before = stage->packets;
		}
		sender_set_stages(sender, engine->stage_storage + first, last - first,
				  engine->barrier ? 1 : UINT32_MAX);
		first = last;
	}
	if (first != count) {
		PyErr_SetString(PyExc_ValueError, "stages must be sorted by source");
		return -1;
	}
	for (uint32_t number = 1; number < engine->stage_numbers; number++)
		engine->stage_ends[number] += engine->stage_ends[number - 1];
	engine->open_stages = 1;
	return 0;
}

int engine_prepare(struct engine *engine)
{
	size_t count = (size_t)engine->flows.len / sizeof(struct flow);

	if (allocate(engine, count, (size_t)engine->background.len / sizeof(struct background_flow))) {
		PyErr_NoMemory();
		return -1;
	}
	if (dpus_init(&engine->dpus, engine->host_count, count, engine->mailbox.buf,
		      (size_t)engine->mailbox.len)) {
		PyErr_SetString(PyExc_ValueError, "the mailbox is malformed, or there is no memory for DPUs");
		return -1;
	}
	if (pace_deliver(engine, 0))
		return -1;
	engine->flow_count = (uint32_t)count;
	engine_head(engine)->written = 0;
	engine_head(engine)->feedback_written = 0;
	engine_head(engine)->late_packets = 0;
	engine_head(engine)->last_ns = engine_head(engine)->lateness_max_ns = engine_head(engine)->timed = 0;
	engine_head(engine)->acks = engine_head(engine)->nacks = 0;
	engine_head(engine)->background_delivered = engine_head(engine)->background_trimmed = 0;
	engine->delivered_before = engine_head(engine)->delivered_packets;
	engine->came_before = engine_head(engine)->came_packets;
	engine->controls.epoch_ns = engine->epoch_ns;
	if (prepare_senders(engine) || prepare_background(engine) || prepare_stages(engine))
		return -1;
	if (transport_init(&engine->transport, engine->expected_packets) ||
	    measure_init(&engine->measure, engine->port_count, engine->host_count, engine->propagation_ns.buf,
			 engine->epoch_ns, engine->bucket_ns, engine->slot_ns)) {
		PyErr_NoMemory();
		return -1;
	}
	if (engine->events_fd >= 0) {
		engine->events = engine->transport.events = calloc(1, sizeof(*engine->events));
		if (!engine->events) {
			PyErr_NoMemory();
			return -1;
		}
		engine->events->fd = engine->events_fd;
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

void engine_free(struct engine *engine)
{
	if (engine->inject)
		inject_close(engine->inject);
	free(engine->senders);
	free(engine->flow_storage);
	free(engine->background_storage);
	free(engine->stage_storage);
	free(engine->stage_ends);
	free(engine->list_storage);
	free(engine->place_storage);
	free(engine->heap_storage);
	free(engine->flow_of);
	free(engine->arriving);
	free(engine->reps);
	free(engine->pending);
	free(engine->kept);
	free(engine->events);
	dpus_free(&engine->dpus);
	transport_free(&engine->transport);
	measure_free(&engine->measure);
}
