/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's half of the transport: packet sequence numbers, what is out, what is lost, what is sent again.
 *
 * As in UEC (facts: uet-htsim): the window is compared with the bytes in flight, which fall by the growth of
 * the receiver's counter; what a NACK, a timeout or the SACKs show to be lost goes out before new data.
 * Losses by SACK are found by time (RACK, RFC 8985): a packet is lost if one that was sent a reordering
 * window later has come in; where nothing comes in, one packet is sent again as a probe. While SACKs show
 * losses, as much as comes in may be sent again, whatever the window (packet conservation, as in PRR, RFC
 * 6937): a control that cut its window because the queue was full would else let it run empty.
 */
#ifndef INCASTFREE_TRANSPORT_H
#define INCASTFREE_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "edt.h"
#include "events.h"
#include "fabric.h"

struct flow { /* as Python lays them out: see testbed/engine/__init__.py */
	uint32_t source, destination;
	uint64_t ready_ns; /* earliest departure, after the sender's start */
	uint32_t packets;
	uint32_t last_bytes; /* wire bytes of the last packet; the others have the MTU */
	uint32_t steps; /* of the line rate, as in the NIC's rate table; 0: not paced */
	uint32_t word; /* of the receiver's bits; see ebpf/include/fabric.h */
	uint32_t before_steps; /* the rate until the schedule's own is in force */
	uint32_t quantum_bytes; /* deficit round robin: what a turn adds; else 0 */
};

/* Three lines of the processor's cache, since with many flows each look at one misses it: what every packet
 * that is sent needs, what it needs besides where there is a transport, and what answers and losses need.
 */
#define CACHE_LINE_BYTES 64

struct flow_state {
	struct edt_flow clock; /* the NIC's, as it is after the latest packet */
	uint64_t ready_ns; /* kernel time */
	uint32_t packets;
	uint32_t next; /* new packet to send */
	uint32_t lost; /* packets to be sent again */
	uint32_t lost_from; /* none below */
	uint32_t steps; /* of the line rate; 0: not paced */
	uint32_t transmissions;
	uint16_t source, destination;
	uint16_t mtu_bytes, last_bytes;
	bool open_loop; /* no window: nothing is acknowledged */
	bool waiting; /* in the list or heap */
	bool probe; /* one packet may pass over the window */
	bool done; /* all is acknowledged */
	bool blocked; /* its window has kept its stage from going on */
	bool recovering; /* SACKs have shown losses that are not yet sent again */

	_Alignas(CACHE_LINE_BYTES) int64_t in_flight_bytes;
	int64_t window_bytes;
	int64_t credit_bytes; /* that came in during recovery: so much may be sent again beyond the window */
	uint64_t first; /* of its packets in the tables below */
	uint64_t oldest_ns; /* nothing that is out was sent before */
	uint64_t heard_ns; /* latest answer, or first packet after a pause, or probe */
	uint32_t out; /* packets of whose fate nothing is known: SACKs lag behind the receiver's counter */
	uint32_t cumulative; /* all below are acknowledged */
	uint32_t retransmissions;

	_Alignas(CACHE_LINE_BYTES) uint64_t received_bytes; /* as the receiver last said */
	uint64_t newest_ns; /* of what has come in, the latest to have been sent */
	uint64_t silence_ns; /* longest wait for an answer of late: what passes for normal */
	uint64_t done_ns; /* last ACK */
	uint64_t gap_ns; /* between two packets of the flow, for its timeouts */
	uint32_t ceiling_steps; /* the schedule's own rate, above which no control goes; 0: none */
	uint32_t nacks, timeouts, sack_losses, probes;
	uint32_t quantum_bytes; /* deficit round robin */
};

_Static_assert(sizeof(struct flow_state) == 3 * CACHE_LINE_BYTES, "a flow has three lines");

enum packet_fate {
	PACKET_UNSENT,
	PACKET_OUT,
	PACKET_LOST,
	PACKET_ACKNOWLEDGED,
};

enum loss_recovery {
	RECOVERY_SACK,
	RECOVERY_TIMEOUT,
	RECOVERY_NONE, /* open loop: nothing is acknowledged */
};

struct transport {
	enum loss_recovery recovery;
	uint64_t rto_ns, reorder_ns;
	uint32_t ack_packets; /* of a flow between two ACKs, and one more */
	uint64_t probe_ns, tail_probe_ns; /* silence after which to probe: with and without new data left */
	struct events *events; /* of a run that is traced; else NULL */
	/* A packet each, flow by flow. */
	uint64_t *sent_ns;
	uint8_t *fate;
	uint8_t *sends;
};

/* What an ACK or NACK brought, for the congestion control. */
struct news {
	uint32_t newly_bytes;
	uint64_t rtt_ns; /* 0: no valid sample */
	bool marked;
	bool lost; /* the packet that a NACK names was out, and is to be sent again */
	uint32_t lost_bytes;
};

static inline uint32_t flow_packet_bytes(const struct flow_state *flow, uint32_t psn)
{
	return psn + 1 == flow->packets ? flow->last_bytes : flow->mtu_bytes;
}

/* Of the packet that flow_may_send is about. */
static inline uint32_t flow_next_bytes(const struct flow_state *flow)
{
	return flow_packet_bytes(flow, flow->lost ? flow->lost_from : flow->next);
}

static inline bool flow_may_send(const struct flow_state *flow)
{
	if (!flow->lost && flow->next >= flow->packets)
		return false;
	if (flow->open_loop)
		return true;
	if (flow->lost && flow->credit_bytes >= (int64_t)flow_next_bytes(flow))
		return true;
	return flow->probe || flow->in_flight_bytes + (int64_t)flow_next_bytes(flow) <= flow->window_bytes;
}

/* 0, or -1 without memory. */
int transport_init(struct transport *transport, uint64_t packets);
void transport_free(struct transport *transport);
/* The flow's next packet leaves at now_ns: its PSN, and what its header says. */
uint32_t transport_send(struct transport *transport, struct flow_state *flow, uint64_t now_ns, uint8_t *flags,
			uint8_t *copy);
/* An ACK has come in. */
struct news transport_ack(struct transport *transport, struct flow_state *flow, const struct feedback *ack);
/* A NACK has come in; its packet is still counted as in flight until transport_nack_done. */
struct news transport_nack(struct transport *transport, struct flow_state *flow, const struct feedback *nack);
void transport_nack_done(struct transport *transport, struct flow_state *flow, const struct feedback *nack);
/* Packets of the flow that the SACKs (by_time false) or the timeout (true) show to be lost at now_ns. For
 * each, `lost`, if it is not NULL, is called with its size, after it was taken off what is in flight; -1 from
 * it ends the walk.
 */
typedef int (*loss_callback)(void *context, struct flow_state *flow, uint32_t bytes);
int transport_find_losses(struct transport *transport, struct flow_state *flow, uint64_t now_ns, bool by_time,
			  loss_callback lost, void *context);
/* Whether a probe is due; if so, it is the next packet to send. */
bool transport_probe(struct transport *transport, struct flow_state *flow, uint64_t now_ns);

#endif
