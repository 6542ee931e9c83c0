// SPDX-License-Identifier: Apache-2.0
#include "hosts.h"

#include "feedback.h"
#include "frame.h"
#include "pace.h"

#define TIMER_TURNS 8

static int on_loss(void *context, struct flow_state *flow, uint32_t bytes)
{
	struct engine *engine = context;

	if (engine->reps)
		reps_freeze(&engine->reps[engine_index_of(engine, flow)],
			    engine->time_ns + engine->freeze_ns);
	if (engine->controls.kind == CONTROL_NONE)
		return 0;
	return pace_govern(engine, flow,
			   control_on_timeout(&engine->controls, engine_index_of(engine, flow), flow,
					      engine->time_ns, bytes));
}

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
		    pace_govern(engine, flow,
				control_on_nack(&engine->controls, place, flow, engine->time_ns, &news)))
			return -1;
		if (engine->dpus.states)
			pace_inform(engine, flow, PCC_NACK, engine->time_ns, 0);
		transport_nack_done(&engine->transport, flow, heard);
	} else {
		bool before = flow->done;

		news = transport_ack(&engine->transport, flow, heard);
		if (engine->reps)
			reps_hear(&engine->reps[place], heard->entropy, news.marked);
		if (engine->controls.kind != CONTROL_NONE &&
		    pace_govern(engine, flow,
				control_on_ack(&engine->controls, place, flow, engine->time_ns, &news)))
			return -1;
		/* A CNP is the echo of a mark: of RoCE's own pauses between two of a flow there is none here.
		 */
		if (engine->dpus.states && news.marked)
			pace_inform(engine, flow, PCC_CNP, engine->time_ns, 0);
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
		return reps_take(&engine->reps[engine_index_of(engine, flow)],
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
		const struct pending *heard = &engine->pending[arriving->head];
		struct flow_state *flow;
		struct packet packet;

		if (arriving->head && heard->feedback.arrival_ns < horizon_ns &&
		    heard->feedback.arrival_ns <= next_ns) {
			if (hear(engine, &heard->feedback, begin_ns))
				return -1;
			feedback_drop_first(engine, arriving);
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
		if (engine->dpus.states && pace_inform(engine, flow, PCC_TX, next_ns, packet.wire_bytes))
			sender_update(sender, flow, next_ns);
		if (engine->controls.calls_on_sent) {
			double answer = control_on_sent(&engine->controls, engine_index_of(engine, flow),
							flow, next_ns, packet.wire_bytes);

			if (answer != -2 && pace_govern(engine, flow, answer))
				return -1;
			sender_update(sender, flow, next_ns);
		}
	}
}

/* Timeouts and probes, of one flow in TIMER_TURNS a wake. */
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

void hosts_pass_barriers(struct engine *engine, uint64_t begin_ns)
{
	uint64_t delivered = engine_delivered(engine);
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

int hosts_run(struct engine *engine, uint64_t begin_ns, uint64_t horizon_ns)
{
	uint64_t rates_ns = engine->epoch_ns + engine->rates_ns;

	if (engine->rates_ns && begin_ns < rates_ns && rates_ns <= horizon_ns) {
		for (uint32_t host = 0; host < engine->host_count; host++)
			if (run_host(engine, host, begin_ns, rates_ns))
				return -1;
		if (pace_put_in_force(engine, rates_ns))
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
