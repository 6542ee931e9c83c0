/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* An output port: store and forward, byte-accurate, data first in first out, control ahead of data.
 *
 * The queue is virtual: from when the port will be clear follows when a packet has reached the far end.
 * That time goes into skb->tstamp, and sch_fq holds the packet until then (net/sched/sch_fq.c: one flow a
 * port and class, by the hash, so that packets of a class cannot pass each other). Propagation is inside
 * the hold: a link is then FIFO whatever its delay, and the far end's program runs at the very nanosecond
 * at which the last bit arrives.
 *
 * Priority is an approximation, since a packet that has its time can no longer be delayed: control passes
 * at once and its time is charged to the data that comes after. docs/model.md bounds the error.
 */
#ifndef INCASTFREE_FABRIC_PORT_H
#define INCASTFREE_FABRIC_PORT_H

#include "mix.h"
#include "packet.h"

/* In place of a time at the far end. */
#define PORT_FULL 0

/* In skb->mark of an answer that its NIC has accepted, where NICs have interfaces of their own. */
#define PORT_ACCEPTED_MARK 0x80000000

/* One record of a data packet that a port has accepted. */
static __always_inline void port_record(struct __sk_buff *skb, __u32 index, const struct packet *packet,
					__u64 arrival_ns, __u64 far_end_ns)
{
	struct record *record = &records[record_head.written & (RECORD_CAPACITY - 1)];

	record->arrival_ns = arrival_ns;
	record->far_end_ns = far_end_ns;
	record->port = index;
	record->wire_bytes = packet->wire_bytes;
	if (tracing) {
		record->source = packet->source;
		record->destination = packet->destination;
		record->psn = packet_psn(skb);
	}
	record_head.written++;
}

/* Data: when the packet will be at the far end, PORT_FULL if the queue had no room for it. */
static __always_inline __u64 port_accept(struct __sk_buff *skb, __u32 index, struct port *port,
					 const struct packet *packet, __u64 arrival_ns)
{
	__u64 idle_ns = arrival_ns + port->propagation_ns; /* clear_ns of a port that is idle */
	__u64 clear_ns = port->clear_ns > idle_ns ? port->clear_ns : idle_ns;

	if (unlikely(port->debt_bytes) && clear_ns > idle_ns) /* an idle port has sent them meanwhile */
		clear_ns += wire_time_ns(port->debt_bytes, port->byte_ns);
	clear_ns += wire_time_ns(packet->wire_bytes, port->byte_ns);
	if (port->limit_ns && clear_ns - idle_ns > port->limit_ns)
		return PORT_FULL;
	port->clear_ns = clear_ns;
	port->debt_bytes = 0;
	if (real_programs && clear_ns - idle_ns > deepest_ns[index & (MAX_PORTS - 1)])
		deepest_ns[index & (MAX_PORTS - 1)] = clear_ns - idle_ns;

	port->accepted_bytes += packet->wire_bytes;
	if (ecn_kmax_bytes && index >= host_count) {
		__u32 slot = index * arrival_slots + (port->accepted & (arrival_slots - 1));
		struct arrival *arrival = &arrivals[slot & (ARRIVAL_CAPACITY - 1)];

		arrival->arrival_ns = arrival_ns;
		arrival->accepted_bytes = port->accepted_bytes;
	}
	port->accepted++;
	port_record(skb, index, packet, arrival_ns, clear_ns);
	return clear_ns;
}

/* Control: the same, with a queue of twice the size. */
static __always_inline __u64 port_accept_control(struct port *port, const struct packet *packet,
						 __u64 arrival_ns)
{
	__u64 idle_ns = arrival_ns + port->propagation_ns;
	__u64 wire_ns = wire_time_ns(packet->wire_bytes, port->byte_ns);
	__u64 clear_ns = (port->control_clear_ns > idle_ns ? port->control_clear_ns : idle_ns) + wire_ns;

	if (port->limit_ns && clear_ns - idle_ns > 2 * port->limit_ns)
		return PORT_FULL;
	port->control_clear_ns = clear_ns;
	port->clear_ns = (port->clear_ns > idle_ns ? port->clear_ns : idle_ns) + wire_ns;
	port->control++;
	if (clear_ns > record_head.last_ns)
		record_head.last_ns = clear_ns;
	return clear_ns;
}

/* Whether a link was down while a packet that is now at its far end was on it. */
static __always_inline bool port_was_down(const struct port *port, __u32 wire_bytes, __u64 departure_ns)
{
	return failing && departure_ns > port->down_ns &&
	       departure_ns - wire_time_ns(wire_bytes, port->byte_ns) < port->up_ns;
}

/* Whether a packet is lost on the link that it has passed: that was down meanwhile, or by chance where a NIC
 * sends. `number` counts the port's packets of the class.
 */
static __always_inline bool port_loses(const struct port *port, __u32 index, bool control, __u32 wire_bytes,
				       __u64 departure_ns, __u32 number)
{
	if (port_was_down(port, wire_bytes, departure_ns))
		return true;
	if (!(loss_data || loss_control) || index >= host_count)
		return false;
	return mix32(mix32(loss_salt + 2 * index + control) + number) < (control ? loss_control : loss_data);
}

/* Bytes that were in the queue when the data packet that has just passed left it: those that had arrived by
 * then. Known only now, since they arrived after it was accepted.
 */
#define MARK_STEPS 1000

static __noinline __u32 port_left_behind(__u32 index, __u64 departure_ns)
{
	struct port *port = port_at(index);
	__u32 cursor = port->cursor, bytes = port->cursor_bytes;

	if ((__s32)(port->passed - cursor) > 0) {
		cursor = port->passed;
		bytes = port->passed_bytes;
	}
	/* Of more packets than it remembers the port takes the older ones to have been there: they were,
	 * unless that many came while this one was on the link.
	 */
	if (port->accepted - cursor >= arrival_slots) {
		cursor = port->accepted - arrival_slots + 1;
		bytes = arrivals[(index * arrival_slots + ((cursor - 1) & (arrival_slots - 1))) &
				 (ARRIVAL_CAPACITY - 1)]
				.accepted_bytes;
	}
	for (int i = 0; i < MARK_STEPS; i++) {
		const struct arrival *arrival;

		if (cursor == port->accepted || bytes - port->passed_bytes > ecn_kmax_bytes)
			break;
		arrival = &arrivals[(index * arrival_slots + (cursor & (arrival_slots - 1))) &
				    (ARRIVAL_CAPACITY - 1)];
		if (arrival->arrival_ns > departure_ns)
			break;
		bytes = arrival->accepted_bytes;
		cursor++;
	}
	port->cursor = cursor;
	port->cursor_bytes = bytes;
	return bytes - port->passed_bytes;
}

/* Marking at dequeue, linear from kmin to kmax: whether a data packet is to be marked that has passed. */
static __always_inline bool port_marks(__u32 index, struct port *port, __u32 wire_bytes, __u64 departure_ns)
{
	__u32 number = port->passed++;
	__u32 left_behind, draw;

	port->passed_bytes += wire_bytes;
	if (!ecn_kmax_bytes || index < host_count ||
	    port->accepted_bytes - port->passed_bytes <= ecn_kmin_bytes)
		return false;
	left_behind = port_left_behind(index, departure_ns);
	if (left_behind <= ecn_kmin_bytes)
		return false;
	if (left_behind <= ecn_kmax_bytes) {
		draw = mix32(mix32(mark_salt + index) + number);
		if ((__u64)draw * (ecn_kmax_bytes - ecn_kmin_bytes) >= (__u64)(left_behind - ecn_kmin_bytes)
									       << 32)
			return false;
	}
	port->marks++;
	return true;
}

/* Sends a noted packet through a port, to be at the far end at until_ns. A redirect clears skb->tstamp, so
 * that the egress hook sets it, from what is noted here.
 */
static __always_inline int port_send(struct __sk_buff *skb, __u32 index, __u64 until_ns)
{
	if (until_ns == PORT_FULL)
		return TC_ACT_SHOT;
	if (veth)
		packet_set_due(skb, until_ns);
	skb->mark = trunk || index >= host_count ? index : PORT_ACCEPTED_MARK;
	skb->cb[0] = (__u32)until_ns;
	skb->cb[1] = (__u32)(until_ns >> 32);
	if (real_programs) {
		/* A clone belongs to no socket (net/core/skbuff.c, __skb_clone): a packet is the sender's
		 * until its NIC has sent it. Else all queues on its way would count as the sender's own, and
		 * TCP (small queues, net/ipv4/tcp_output.c) keep hardly any packet in the network.
		 */
		bpf_clone_redirect(skb, PORT_IFINDEX_BASE + index, 0);
		return TC_ACT_SHOT;
	}
	return bpf_redirect(trunk ? TRUNK_IFINDEX : PORT_IFINDEX_BASE + index, 0);
}

/* On the egress hook: sch_fq is next, with one flow for a port's data and one for its control. */
static __always_inline int port_hold(struct __sk_buff *skb, __u32 index, __u64 until_ns)
{
	bool control = (skb->cb[4] & 0xff) >= TOS_CONTROL;

	skb->tstamp = until_ns;
	bpf_set_hash(skb, 2 * index + control + 1);
	return TC_ACT_OK;
}

#endif
