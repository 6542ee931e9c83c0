// SPDX-License-Identifier: Apache-2.0
/* What the engine does at each wake; engine.h says how it works. */
#include "engine.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "frame.h"
#include "wire_time.h"

#define SECOND_NS      1000000000ULL
#define PROGRESS_STEPS 50

static void sleep_until(uint64_t when_ns)
{
	struct timespec when = {.tv_sec = (time_t)(when_ns / SECOND_NS),
				.tv_nsec = (long)(when_ns % SECOND_NS)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

/* ---- congestion control ---- */

static size_t index_of(const struct engine *engine, const struct flow_state *flow)
{
	return (size_t)(flow - engine->flow_storage);
}

/* Puts a control's answer in force. -1 if it was an exception. */
static int govern(struct engine *engine, struct flow_state *flow, double answer)
{
	if (answer == -1)
		return -1;
	if (engine->controls.kind == CONTROL_WINDOW) {
		/* Below one packet nothing could ever be sent. */
		flow->window_bytes = answer < engine->mtu_bytes ? engine->mtu_bytes
				     : answer > 1e15            ? (int64_t)1e15
								: (int64_t)answer;
	} else {
		const uint64_t *byte_ns = engine->byte_ns.buf;
		uint64_t line_byte_ns = byte_ns[flow->source];
		double line_bps = 8e9 * engine->dilation * 4294967296.0 / (double)line_byte_ns;
		double share = answer / line_bps * (double)RATE_ONE;
		uint32_t ceiling = flow->ceiling_steps ? flow->ceiling_steps : UINT32_MAX;

		flow->steps = share < 1 ? 1 : share >= (double)ceiling ? ceiling : (uint32_t)share;
		flow->gap_ns = (uint64_t)((double)wire_time_ns(engine->mtu_bytes, line_byte_ns) *
					  (double)RATE_ONE / flow->steps);
	}
	return 0;
}

/* ---- DPUs (nic = doca-model) ---- */

/* Tells a flow's DPU of an event at now_ns, and lets the flow have the rate that it answers with. Whether
 * that is another one. A timeout is none of the events that a DPU hears of.
 */
static bool inform(struct engine *engine, struct flow_state *flow, enum pcc_event_kind kind, uint64_t now_ns,
		   uint32_t bytes)
{
	const uint64_t *byte_ns = engine->byte_ns.buf;
	uint64_t fabric_ns = (uint64_t)((double)(now_ns - engine->epoch_ns) / engine->dilation);
	uint32_t steps = dpus_event(&engine->dpus, flow->source, index_of(engine, flow),
				    &(struct pcc_event){
					    .kind = kind,
					    .qpn = kind == PCC_TX ? DPU_FIRST_QPN + flow->destination : 0,
					    .now_ns = (uint32_t)fabric_ns,
					    .bytes = bytes,
					    .count = 1,
				    });

	if (steps == flow->steps)
		return false;
	flow->steps = steps;
	flow->gap_ns = (uint64_t)((double)wire_time_ns(engine->mtu_bytes, byte_ns[flow->source]) *
				  (double)RATE_ONE / steps);
	return true;
}

/* What the hosts have sent to their DPUs is there, of all that is due so long after the start. */
static int deliver(struct engine *engine, uint64_t since_ns)
{
	uint32_t host, status = dpus_deliver(&engine->dpus, since_ns, &host);

	if (status == PCC_OK)
		return 0;
	PyErr_Format(PyExc_RuntimeError, "the DPU of host %u refused a message: status %u", host, status);
	return -1;
}

static int on_loss(void *context, struct flow_state *flow, uint32_t bytes)
{
	struct engine *engine = context;

	if (engine->reps)
		reps_freeze(&engine->reps[index_of(engine, flow)], engine->time_ns + engine->freeze_ns);
	if (engine->controls.kind == CONTROL_NONE)
		return 0;
	return govern(
		engine, flow,
		control_on_timeout(&engine->controls, index_of(engine, flow), flow, engine->time_ns, bytes));
}

/* ---- one wake ---- */

/* Acts on an ACK or NACK at the time of its arrival, or at begin_ns if that has passed. */
static int hear(struct engine *engine, const struct feedback *heard, uint64_t begin_ns)
{
	uint32_t place = engine->flow_of[heard->source * engine->host_count + heard->destination];
	struct flow_state *flow = &engine->flow_storage[place];
	struct news news;

	engine->time_ns = heard->arrival_ns > begin_ns ? heard->arrival_ns : begin_ns;
	if (heard->kind == TRANSPORT_NACK) {
		news = transport_nack(&engine->transport, flow, heard);
		if (!news.lost)
			return 0;
		if (engine->controls.kind != CONTROL_NONE &&
		    govern(engine, flow,
			   control_on_nack(&engine->controls, place, flow, engine->time_ns, &news)))
			return -1;
		if (engine->dpus.states)
			inform(engine, flow, PCC_NACK, engine->time_ns, 0);
		transport_nack_done(&engine->transport, flow, heard);
	} else {
		bool before = flow->done;

		news = transport_ack(&engine->transport, flow, heard);
		if (engine->reps)
			reps_hear(&engine->reps[place], heard->entropy, news.marked);
		if (engine->controls.kind != CONTROL_NONE &&
		    govern(engine, flow,
			   control_on_ack(&engine->controls, place, flow, engine->time_ns, &news)))
			return -1;
		/* A CNP is the echo of a mark: of RoCE's own pauses between two of a flow there is none here.
		 */
		if (engine->dpus.states && news.marked)
			inform(engine, flow, PCC_CNP, engine->time_ns, 0);
		/* The control has heard of the queue by delay and marks: a loss by SACK is mended, not
		 * reported. */
		if (engine->transport.recovery == RECOVERY_SACK)
			transport_find_losses(&engine->transport, flow, engine->time_ns, false, NULL, NULL);
		engine->done_flows += flow->done && !before;
	}
	sender_update(&engine->senders[heard->source], flow, engine->time_ns);
	return 0;
}

/* Entropy value of a packet that starts at now_ns; flow is NULL for one of the background, which hears of no
 * path. */
static uint16_t balance(struct engine *engine, const struct flow_state *flow, const struct packet *packet,
			uint64_t now_ns)
{
	if (engine->reps && flow)
		return reps_take(&engine->reps[index_of(engine, flow)],
				 flow_seed(engine->seed, flow->source, flow->destination), now_ns);
	return entropy_value(engine->balancing, engine->seed, packet->source, packet->spread, packet->number);
}

/* One host from begin_ns up to horizon_ns: what it hears and what it sends, in their order. */
static int run_host(struct engine *engine, uint32_t host, uint64_t begin_ns, uint64_t horizon_ns)
{
	struct sender *sender = &engine->senders[host];
	struct queue *arriving = &engine->arriving[host];
	/* Neighbours share a socket: a batch ends where the socket changes. */
	int socket = (int)(host * (uint32_t)engine->sockets / engine->host_count);
	const struct port *port = (const struct port *)engine->ports.buf + host;

	/* The port has sent the NIC's own answers, too. */
	if (port->clear_ns > sender->clear_ns + port->propagation_ns)
		sender->clear_ns = port->clear_ns - port->propagation_ns;
	for (;;) {
		uint64_t next_ns = sender_next_ns(sender);
		struct pending *heard = &engine->pending[arriving->head];
		struct flow_state *flow;
		struct packet packet;

		if (arriving->head && heard->feedback.arrival_ns < horizon_ns &&
		    heard->feedback.arrival_ns <= next_ns) {
			uint32_t place = arriving->head;

			if (hear(engine, &heard->feedback, begin_ns))
				return -1;
			arriving->head = heard->next;
			if (arriving->head)
				engine->pending[arriving->head].previous = 0;
			else
				arriving->tail = 0;
			heard->next = engine->pending_free;
			engine->pending_free = place;
			continue;
		}
		if (next_ns >= horizon_ns)
			return 0;
		flow = sender_take(sender, &engine->transport, &packet);
		if (inject_packet(engine->inject, socket, &packet, balance(engine, flow, &packet, next_ns))) {
			PyErr_SetFromErrno(PyExc_OSError);
			return -1;
		}
		if (!flow) {
			engine->background_sent++;
			continue;
		}
		engine->sent_packets++;
		if (engine->events)
			events_note(engine->events,
				    (struct event){.time_ns = next_ns,
						   .since_ns = flow->ready_ns,
						   .psn = packet.psn,
						   .source = (uint16_t)packet.source,
						   .destination = (uint16_t)packet.destination,
						   .kind = EVENT_SENT,
						   .copy = packet.copy});
		if (engine->dpus.states && inform(engine, flow, PCC_TX, next_ns, packet.wire_bytes))
			sender_update(sender, flow, next_ns);
		if (engine->controls.calls_on_sent) {
			double answer = control_on_sent(&engine->controls, index_of(engine, flow), flow,
							next_ns, packet.wire_bytes);

			if (answer != -2 && govern(engine, flow, answer))
				return -1;
			sender_update(sender, flow, next_ns);
		}
	}
}

/* Timeouts and probes, of one flow in TIMER_TURNS a wake. */
#define TIMER_TURNS 8

static int run_timers(struct engine *engine, uint64_t now)
{
	engine->time_ns = now;
	for (uint32_t i = engine->turn++ % TIMER_TURNS; i < engine->flow_count; i += TIMER_TURNS) {
		struct flow_state *flow = &engine->flow_storage[i];
		uint32_t lost = flow->lost;

		if (flow->done)
			continue;
		if (transport_find_losses(&engine->transport, flow, now, true, on_loss, engine))
			return -1;
		if (transport_probe(&engine->transport, flow, now) || flow->lost != lost)
			sender_update(&engine->senders[flow->source], flow, now);
	}
	return 0;
}

/* A new rate table: from now_ns on all flows have the schedule's own rates. A flow keeps its debt. With DPUs
 * each takes its own at its next event.
 */
static int put_rates_in_force(struct engine *engine, uint64_t now_ns)
{
	const struct flow *flows = engine->flows.buf;
	const uint64_t *byte_ns = engine->byte_ns.buf;

	if (engine->dpus.states)
		return deliver(engine, engine->rates_ns);
	for (uint32_t i = 0; i < engine->flow_count; i++) {
		struct flow_state *flow = &engine->flow_storage[i];

		flow->steps = flows[i].steps;
		if (flow->steps)
			flow->gap_ns =
				(uint64_t)((double)wire_time_ns(engine->mtu_bytes, byte_ns[flow->source]) *
					   (double)RATE_ONE / flow->steps);
		sender_update(&engine->senders[flow->source], flow, now_ns);
	}
	return 0;
}

/* The barrier: where all of a stage has come, the next one begins when everybody has heard of it. The engine
 * learns of it a period late, which is in time if the news takes longer.
 */
static void pass_barriers(struct engine *engine, uint64_t begin_ns)
{
	uint64_t delivered = engine_head(engine)->delivered_packets - engine->delivered_before;
	uint64_t heard_ns = engine_head(engine)->delivered_ns + engine->barrier_ns;
	uint32_t before = engine->open_stages;

	if (!engine->barrier)
		return;
	while (engine->open_stages < engine->stage_numbers &&
	       delivered >= engine->stage_ends[engine->open_stages - 1])
		engine->open_stages++;
	if (engine->open_stages == before)
		return;
	for (uint32_t host = 0; host < engine->host_count; host++)
		sender_open_stages(&engine->senders[host], engine->open_stages,
				   heard_ns > begin_ns ? heard_ns : begin_ns);
}

static int send_until(struct engine *engine, uint64_t begin_ns, uint64_t horizon_ns)
{
	uint64_t rates_ns = engine->epoch_ns + engine->rates_ns;

	if (engine->rates_ns && begin_ns < rates_ns && rates_ns <= horizon_ns) {
		for (uint32_t host = 0; host < engine->host_count; host++)
			if (run_host(engine, host, begin_ns, rates_ns))
				return -1;
		if (put_rates_in_force(engine, rates_ns))
			return -1;
		begin_ns = rates_ns;
	}
	for (uint32_t host = 0; host < engine->host_count; host++)
		if (run_host(engine, host, begin_ns, horizon_ns))
			return -1;
	/* After all that was heard in time; what they bring to be sent goes out in the next period. */
	if (engine_has_transport(engine) && run_timers(engine, horizon_ns))
		return -1;
	if (inject_flush(engine->inject)) {
		PyErr_SetFromErrno(PyExc_OSError);
		return -1;
	}
	return 0;
}

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

/* How many entries of a ring are taken, `written` of them now. While virtual time stands still nobody writes,
 * and the ring starts anew each time, so that what is in use of it stays in the processor's cache.
 */
static uint64_t take(const struct engine *engine, __u64 *counter, uint64_t written)
{
	if (engine->late_records)
		return written;
	*counter = 0;
	return 0;
}

/* Sorts what the fabric noted for the hosts, each host's in the order of arrival. */
static int read_feedback(struct engine *engine)
{
	const struct feedback *ring = engine->feedback.buf;
	uint64_t written = engine_head(engine)->feedback_written;
	uint64_t taken = engine->feedback_taken;

	if (written - taken > FEEDBACK_CAPACITY) {
		PyErr_Format(PyExc_RuntimeError, "the fabric noted %llu answers in one period, more than %u",
			     (unsigned long long)(written - taken), FEEDBACK_CAPACITY);
		return -1;
	}
	engine->feedback_taken = take(engine, &engine_head(engine)->feedback_written, written);
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

static int read_records(struct engine *engine)
{
	const struct record *ring = engine->records.buf;
	uint64_t written = engine_head(engine)->written;
	uint64_t taken = engine->records_taken;

	if (written - taken > RECORD_CAPACITY) {
		PyErr_Format(PyExc_RuntimeError, "the fabric wrote %llu records in one period, more than %u",
			     (unsigned long long)(written - taken), RECORD_CAPACITY);
		return -1;
	}
	engine->records_taken = take(engine, &engine_head(engine)->written, written);
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

int engine_finish(struct engine *engine)
{
	if (engine->kept_count)
		qsort(engine->kept, engine->kept_count, sizeof(*engine->kept), compare_records);
	for (size_t i = 0; i < engine->kept_count; i++)
		if (measure_record(&engine->measure, &engine->kept[i])) {
			PyErr_NoMemory();
			return -1;
		}
	measure_finish(&engine->measure, engine->last_far_end_ns);
	if (engine->events && events_flush(engine->events)) {
		PyErr_SetFromErrno(PyExc_OSError);
		return -1;
	}
	return trace(engine, engine->kept, engine->kept_count * sizeof(*engine->kept));
}

static void report_progress(struct engine *engine, uint64_t time_ns, uint64_t *reported)
{
	uint64_t delivered = engine_head(engine)->delivered_packets - engine->delivered_before;
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
		pass_barriers(engine, begin_ns);
		if (read_feedback(engine) || send_until(engine, begin_ns, begin_ns + engine->period_ns) ||
		    read_records(engine))
			return -1;
		report_progress(engine, wake_ns, &reported);
		end_background(engine);
		if (is_complete(engine, wake_ns))
			return 0;
		if (wake_ns > engine->epoch_ns && wake_ns - engine->epoch_ns > engine->limit_ns) {
			PyErr_Format(PyExc_TimeoutError,
				     "%llu of %llu packets had arrived at the limit of virtual time",
				     (unsigned long long)(engine_head(engine)->delivered_packets -
							  engine->delivered_before),
				     (unsigned long long)engine->expected_packets);
			return -1;
		}
	}
}

/* ---- set-up ---- */

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
	const uint64_t *byte_ns = engine->byte_ns.buf, *start_ns = engine->start_ns.buf;
	uint64_t wire_ns = wire_time_ns(engine->mtu_bytes, byte_ns[flow->source]);
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
		.gap_ns = pace ? (uint64_t)((double)wire_ns * (double)RATE_ONE / pace) : pause_ns,
		.quantum_bytes = flow->quantum_bytes,
	};
	engine->expected_packets += flow->packets;
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
	const struct flow *flows = engine->flows.buf;
	size_t count = (size_t)engine->flows.len / sizeof(*flows);
	const uint64_t *byte_ns = engine->byte_ns.buf;
	const double *windows = engine->windows.buf;

	if (allocate(engine, count, (size_t)engine->background.len / sizeof(struct background_flow))) {
		PyErr_NoMemory();
		return -1;
	}
	if (dpus_init(&engine->dpus, engine->host_count, count, engine->mailbox.buf,
		      (size_t)engine->mailbox.len)) {
		PyErr_SetString(PyExc_ValueError, "the mailbox is malformed, or there is no memory for DPUs");
		return -1;
	}
	if (deliver(engine, 0))
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
	for (uint32_t host = 0, first = 0; host < engine->host_count; host++) {
		uint32_t last = first;

		while (last < count && flows[last].source == host)
			last++;
		for (uint32_t i = first; i < last; i++) {
			prepare_flow(engine, &flows[i], i,
				     round_ns(engine, &flows[first], &flows[i], last - first));
			if (engine->controls.kind != CONTROL_NONE &&
			    govern(engine, &engine->flow_storage[i], windows[i]))
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
	if (prepare_background(engine) || prepare_stages(engine))
		return -1;
	if (transport_init(&engine->transport, engine->expected_packets)) {
		PyErr_NoMemory();
		return -1;
	}
	if (measure_init(&engine->measure, engine->port_count, engine->host_count, engine->propagation_ns.buf,
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
