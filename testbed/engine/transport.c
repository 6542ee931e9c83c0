// SPDX-License-Identifier: Apache-2.0
#include "transport.h"

#include <stdlib.h>
#include <string.h>

#include "frame.h"

#define MANY_SENDS 255

int transport_init(struct transport *transport, uint64_t packets)
{
	if (transport->recovery == RECOVERY_NONE)
		return 0;
	transport->sent_ns = calloc(packets + 1, sizeof(*transport->sent_ns));
	transport->fate = calloc(packets + 1, sizeof(*transport->fate));
	transport->sends = calloc(packets + 1, sizeof(*transport->sends));
	return transport->sent_ns && transport->fate && transport->sends ? 0 : -1;
}

void transport_free(struct transport *transport)
{
	free(transport->sent_ns);
	free(transport->fate);
	free(transport->sends);
}

/* ---- sending ---- */

/* The next packet that is lost, after one was taken. */
static void seek_lost(const struct transport *transport, struct flow_state *flow)
{
	const uint8_t *fate = transport->fate + flow->first;

	while (flow->lost && fate[flow->lost_from] != PACKET_LOST)
		flow->lost_from++;
}

uint32_t transport_send(struct transport *transport, struct flow_state *flow, uint64_t now_ns, uint8_t *flags,
			uint8_t *copy)
{
	uint32_t psn = flow->lost ? flow->lost_from : flow->next;
	uint32_t bytes = flow_packet_bytes(flow, psn);
	uint64_t at = flow->first + psn;

	*flags = 0;
	*copy = 1;
	if (transport->recovery == RECOVERY_NONE)
		return flow->next++;
	if (!flow->out++) {
		flow->oldest_ns = now_ns;
		flow->heard_ns = now_ns;
	}
	if (flow->lost) {
		*flags = TRANSPORT_RETRANSMISSION | TRANSPORT_ACK_REQUEST;
		flow->retransmissions++;
		flow->lost--;
		flow->credit_bytes =
			flow->lost && flow->credit_bytes > bytes ? flow->credit_bytes - bytes : 0;
		flow->recovering = flow->recovering && flow->lost;
	} else {
		flow->next++;
	}
	flow->probe = false;
	flow->in_flight_bytes += bytes;
	/* What the sender then waits for is to be answered at once. */
	if (flow->next == flow->packets || flow->in_flight_bytes + (int64_t)bytes >= flow->window_bytes)
		*flags |= TRANSPORT_ACK_REQUEST;
	transport->sent_ns[at] = now_ns;
	transport->fate[at] = PACKET_OUT;
	if (transport->sends[at] < MANY_SENDS)
		transport->sends[at]++;
	*copy = transport->sends[at];
	seek_lost(transport, flow);
	return psn;
}

/* ---- what comes back ---- */

static void acknowledge(struct transport *transport, struct flow_state *flow, uint32_t psn)
{
	uint64_t at = flow->first + psn;

	switch (transport->fate[at]) {
	case PACKET_LOST: /* it was not: it had been taken off what is in flight */
		flow->in_flight_bytes += flow_packet_bytes(flow, psn);
		flow->lost--;
		break;
	case PACKET_OUT:
		flow->out--;
		break;
	default:
		return;
	}
	transport->fate[at] = PACKET_ACKNOWLEDGED;
	/* Of one that was sent twice nobody knows which came in. */
	if (transport->sends[at] == 1 && transport->sent_ns[at] > flow->newest_ns)
		flow->newest_ns = transport->sent_ns[at];
}

/* Round-trip time of the packet that is answered, 0 if it was answered before or is ambiguous. */
static uint64_t rtt_sample(const struct transport *transport, const struct flow_state *flow,
			   const struct feedback *answer)
{
	uint64_t at = flow->first + answer->psn;
	bool again = answer->flags & TRANSPORT_RETRANSMISSION;

	if (answer->psn >= flow->next || transport->fate[at] != PACKET_OUT ||
	    transport->sends[at] != 1 + again)
		return 0;
	return answer->arrival_ns - transport->sent_ns[at];
}

static void hear(struct flow_state *flow, uint64_t now_ns)
{
	uint64_t gap_ns = now_ns > flow->heard_ns ? now_ns - flow->heard_ns : 0;

	if (gap_ns > flow->silence_ns)
		flow->silence_ns = gap_ns;
	else
		flow->silence_ns -= flow->silence_ns / 8;
	flow->heard_ns = now_ns;
}

struct news transport_ack(struct transport *transport, struct flow_state *flow, const struct feedback *ack)
{
	struct news news = {.marked = ack->flags & TRANSPORT_ECN_ECHO};

	if (ack->received_bytes > flow->received_bytes) {
		news.newly_bytes = (uint32_t)(ack->received_bytes - flow->received_bytes);
		flow->received_bytes = ack->received_bytes;
		flow->in_flight_bytes -= news.newly_bytes;
	}
	if (flow->recovering)
		flow->credit_bytes += news.newly_bytes;
	news.rtt_ns = rtt_sample(transport, flow, ack);
	hear(flow, ack->arrival_ns);
	/* The packet that is answered may be one that was sent again: that it came in is known. */
	if (news.rtt_ns && transport->sent_ns[flow->first + ack->psn] > flow->newest_ns)
		flow->newest_ns = transport->sent_ns[flow->first + ack->psn];
	for (; flow->cumulative < ack->cumulative && flow->cumulative < flow->next; flow->cumulative++)
		acknowledge(transport, flow, flow->cumulative);
	for (uint64_t bits = ack->sack, psn = ack->sack_base; bits && psn < flow->next; bits >>= 1, psn++)
		if (bits & 1)
			acknowledge(transport, flow, (uint32_t)psn);
	if (flow->lost_from < flow->cumulative)
		flow->lost_from = flow->cumulative;
	seek_lost(transport, flow);
	if (!flow->lost) {
		flow->recovering = false;
		flow->probe = false;
		flow->credit_bytes = 0;
	}
	if (flow->cumulative == flow->packets && !flow->done) {
		flow->done = true;
		flow->done_ns = ack->arrival_ns;
	}
	return news;
}

static void lose(struct transport *transport, struct flow_state *flow, uint32_t psn, enum event_kind why,
		 uint64_t now_ns)
{
	if (transport->events)
		events_note(transport->events, (struct event){.time_ns = now_ns,
							      .psn = psn,
							      .source = flow->source,
							      .destination = flow->destination,
							      .kind = (uint8_t)why,
							      .copy = transport->sends[flow->first + psn]});
	transport->fate[flow->first + psn] = PACKET_LOST;
	flow->out--;
	flow->in_flight_bytes -= flow_packet_bytes(flow, psn);
	if (!flow->lost++ || psn < flow->lost_from)
		flow->lost_from = psn;
}

struct news transport_nack(struct transport *transport, struct flow_state *flow, const struct feedback *nack)
{
	struct news news = {.rtt_ns = rtt_sample(transport, flow, nack)};
	uint64_t at = flow->first + nack->psn;

	hear(flow, nack->arrival_ns);
	/* An older copy of it may have been trimmed that was sent again long since. */
	news.lost = nack->psn < flow->next && transport->fate[at] == PACKET_OUT &&
		    transport->sends[at] == nack->copy;
	news.lost_bytes = flow_packet_bytes(flow, nack->psn);
	if (news.lost)
		flow->nacks++;
	return news;
}

void transport_nack_done(struct transport *transport, struct flow_state *flow, const struct feedback *nack)
{
	lose(transport, flow, nack->psn, EVENT_NACK, nack->arrival_ns);
}

/* ---- losses that nobody reports ---- */

/* How long the flow's own pace may delay an answer: as long as new packets follow, the receiver may wait for
 * some of them, but the last one asks to be answered at once.
 */
static uint64_t pace_ns(const struct transport *transport, const struct flow_state *flow)
{
	return flow->next < flow->packets ? transport->ack_packets * flow->gap_ns : 0;
}

int transport_find_losses(struct transport *transport, struct flow_state *flow, uint64_t now_ns, bool by_time,
			  loss_callback lost, void *context)
{
	uint64_t wait_ns = by_time ? transport->rto_ns + pace_ns(transport, flow) : transport->reorder_ns;
	uint64_t reference_ns = by_time ? now_ns : flow->newest_ns;
	const uint64_t *sent_ns = transport->sent_ns + flow->first;
	const uint8_t *fate = transport->fate + flow->first;
	uint64_t oldest_ns = UINT64_MAX;

	if (!flow->out || flow->oldest_ns + wait_ns >= reference_ns)
		return 0;
	for (uint32_t psn = flow->cumulative; psn < flow->next; psn++) {
		if (fate[psn] != PACKET_OUT)
			continue;
		if (sent_ns[psn] + wait_ns >= reference_ns) {
			if (sent_ns[psn] < oldest_ns)
				oldest_ns = sent_ns[psn];
			continue;
		}
		lose(transport, flow, psn, by_time ? EVENT_TIMEOUT : EVENT_SACK, now_ns);
		if (by_time)
			flow->timeouts++;
		else
			flow->sack_losses++;
		flow->recovering = flow->recovering || !by_time;
		if (lost && lost(context, flow, flow_packet_bytes(flow, psn)))
			return -1;
	}
	flow->oldest_ns = oldest_ns == UINT64_MAX ? now_ns : oldest_ns;
	return 0;
}

bool transport_probe(struct transport *transport, struct flow_state *flow, uint64_t now_ns)
{
	bool tail = flow->next == flow->packets;
	uint64_t wait_ns = (tail ? transport->tail_probe_ns : transport->probe_ns) +
			   pace_ns(transport, flow) + 2 * flow->silence_ns;
	uint8_t *fate = transport->fate + flow->first;

	if (transport->recovery != RECOVERY_SACK || flow->probe || (!flow->lost && !flow->out) ||
	    flow->heard_ns + wait_ns >= now_ns)
		return false;
	flow->heard_ns = now_ns;
	if (flow->lost) {
		flow->probe = true;
		flow->probes++;
		return true;
	}
	for (uint32_t psn = flow->next; psn-- > flow->cumulative;) {
		if (fate[psn] != PACKET_OUT)
			continue;
		lose(transport, flow, psn, EVENT_PROBE, now_ns);
		flow->probe = true;
		flow->probes++;
		return true;
	}
	return false;
}
