/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* An output port: first in, first out, store and forward, byte-accurate.
 *
 * The queue is virtual: from when the port will be clear follows when a packet has reached the far end.
 * That time goes into skb->tstamp, and sch_fq holds the packet until then (net/sched/sch_fq.c: one flow a
 * port, by the hash, so that packets cannot pass each other). Propagation is inside
 * the hold: a link is then FIFO whatever its delay, and the far end's program runs at the very nanosecond
 * at which the last bit arrives.
 */
#ifndef INCASTFREE_FABRIC_PORT_H
#define INCASTFREE_FABRIC_PORT_H

#include "state.h"

/* When the packet will be at the far end, 0 if the queue had no room for it. */
static __always_inline __u64 port_accept(__u32 index, struct port *port, const struct packet *packet,
					 __u64 arrival_ns)
{
	__u64 idle_ns = arrival_ns + port->propagation_ns; /* clear_ns of a port that is idle */
	__u64 clear_ns = port->clear_ns > idle_ns ? port->clear_ns : idle_ns;
	struct record *record;

	clear_ns += wire_time_ns(packet->wire_bytes, port->byte_ns);
	if (port->limit_ns && clear_ns - idle_ns > port->limit_ns) {
		port->drops++;
		return 0;
	}
	port->clear_ns = clear_ns;

	record = &records[record_head.written & (RECORD_CAPACITY - 1)];
	record_head.written++;
	record->arrival_ns = arrival_ns;
	record->far_end_ns = clear_ns;
	record->port = index;
	record->wire_bytes = packet->wire_bytes;
	if (tracing) {
		record->source = packet->source;
		record->destination = packet->destination;
		record->psn = packet->psn;
	}
	return clear_ns;
}

/* The port at which a packet has come in. */
static __always_inline __u32 port_of_arrival(const struct __sk_buff *skb)
{
	if (!trunk)
		return skb->ifindex - PORT_IFINDEX_BASE;
	return skb->mark < MAX_PORTS ? ports[skb->mark].peer : MAX_PORTS;
}

/* Sends through a port, to be at the far end at until_ns. A redirect clears skb->tstamp, so that the egress
 * hook sets it, from what is noted here.
 */
static __always_inline int port_send(struct __sk_buff *skb, __u32 index, __u64 until_ns)
{
	if (!until_ns)
		return TC_ACT_SHOT;
	skb->mark = index;
	skb->cb[0] = (__u32)until_ns;
	skb->cb[1] = (__u32)(until_ns >> 32);
	return bpf_redirect(trunk ? TRUNK_IFINDEX : PORT_IFINDEX_BASE + index, 0);
}

/* On the egress hook: sch_fq is next, with one flow a port. */
static __always_inline int port_hold(struct __sk_buff *skb, __u32 index, __u64 until_ns)
{
	skb->tstamp = until_ns;
	bpf_set_hash(skb, index + 1);
	return TC_ACT_OK;
}

#endif
