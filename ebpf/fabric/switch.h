/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* A switch: where a packet comes in, the output port is picked and its queue charged; sch_fq there holds it.
 *
 * Nothing here knows of leaves, spines or tiers: routes are tables that Python computes from the topology.
 */
#ifndef INCASTFREE_FABRIC_SWITCH_H
#define INCASTFREE_FABRIC_SWITCH_H

#include "port.h"

/* Equal-cost multipath: which of `ways` members the five-tuple takes at this switch. The salt differs from
 * switch to switch and from seed to seed, so that tiers do not polarise. The multipliers are odd numbers with
 * well-mixed bits (the primes of xxHash32).
 */
static __always_inline __u32 path_hash(struct __sk_buff *skb, __u32 salt, const struct packet *packet)
{
	return mix32(salt + packet->source * 0x9e3779b1 + packet->destination * 0x85ebca77 +
		     packet_entropy(skb, packet) * 0xc2b2ae3d);
}

static __always_inline __u32 member_of(__u32 hash, __u32 ways)
{
	return ((__u64)hash * ways) >> 32;
}

/* Adaptive routing: the lower, the better a port is at now_ns. First by the occupancy of its queue of data,
 * in the four levels of the reference simulator (facts: uet-htsim): under 5, 10, 20 % of the queue, and
 * above; then by what was drawn for it. Global, so that the verifier looks at it once, and not at each turn
 * of the loop below.
 */
__noinline __u64 port_rank(__u32 index, __u32 drawn, __u64 now_ns)
{
	const struct port *port = port_at(index);
	__u64 idle_ns = now_ns + port->propagation_ns;
	__u64 queue_ns = port->clear_ns > idle_ns ? port->clear_ns - idle_ns : 0;
	__u64 full_ns = occupancy_ns[index & (MAX_PORTS - 1)];
	__u64 level = (queue_ns * 20 >= full_ns) + (queue_ns * 10 >= full_ns) + (queue_ns * 5 >= full_ns);

	return level << 32 | drawn;
}

/* The least occupied of the `ways` ports of members from `first` on, of which there are no more than
 * ADAPTIVE_WAYS. Of equal ones the draw decides: from a hash that differs from packet to packet.
 */
static __always_inline __u32 adaptive_member(__u32 first, __u32 ways, __u32 hash, __u64 now_ns)
{
	__u64 least = ~0ULL;
	__u32 best = MAX_PORTS;

	for (__u32 way = 0; way < ADAPTIVE_WAYS && way < ways; way++) {
		__u32 index = members[(first + way) & (MAX_MEMBERS - 1)];
		__u64 rank = port_rank(index, mix32(hash + way), now_ns);

		if (rank < least) {
			least = rank;
			best = index;
		}
	}
	return best;
}

/* Output port for a packet that has come in at port `index` of a switch at now_ns; MAX_PORTS or more if there
 * is no way. Control keeps to its hash whatever data does: it passes every queue, and the way of an answer is
 * computed ahead.
 */
static __always_inline __u32 switch_route(struct __sk_buff *skb, __u32 index, const struct packet *packet,
					  bool control, __u64 now_ns)
{
	const struct port *port = port_at(index);
	__u32 route = routes[(port->routes + packet->destination) & (MAX_ROUTES - 1)];
	__u32 ways = route >> ROUTE_WAYS_SHIFT;
	__u32 out = route & ROUTE_INDEX_MASK;

	if (ways > 1) {
		__u32 hash = path_hash(skb, port->salt, packet);

		if (!control && (adaptive || (real_programs && spraying))) {
			/* Of a real program's packets the link tells one from the next. */
			__u32 psn = real_programs ? port_at(port->peer)->passed : packet_psn(skb);

			if (real_programs && spraying)
				hash = mix32(hash + psn);
			if (adaptive)
				return adaptive_member(out, ways, mix32(hash + psn), now_ns);
		}
		out = members[(out + member_of(hash, ways)) & (MAX_MEMBERS - 1)];
	}
	return ways ? out : MAX_PORTS;
}

/* A new entry for an ACK or NACK that will be at its host at arrival_ns; packet is the answer itself. */
static __always_inline struct feedback *feedback_new(struct __sk_buff *skb, const struct packet *packet,
						     __u64 arrival_ns)
{
	struct feedback *entry = &feedback[record_head.feedback_written & (FEEDBACK_CAPACITY - 1)];

	record_head.feedback_written++;
	entry->arrival_ns = arrival_ns;
	entry->psn = packet_psn(skb);
	/* An answer has the ports of the packet that it answers. */
	entry->entropy = (packet_ports(skb) >> 16) - FRAME_ENTROPY_PORT;
	entry->source = packet->destination;
	entry->destination = packet->source;
	return entry;
}

/* Notes an ACK or NACK for the engine, which stands for the host behind this port: the packet ends here. */
static __always_inline void feedback_note(struct __sk_buff *skb, const struct transport_header *transport,
					  const struct packet *packet, __u64 arrival_ns)
{
	struct feedback *entry = feedback_new(skb, packet, arrival_ns);

	entry->received_bytes = transport->received_bytes;
	entry->sack = transport->sack;
	entry->sack_base = transport->sack_base;
	entry->cumulative = transport->cumulative;
	entry->kind = transport->kind;
	entry->flags = transport->flags;
	entry->copy = transport->copy;
}

/* A noted packet of control, through port `index`. (Given by its skb alone, so that who calls can keep what
 * is in it in registers.)
 */
static __noinline int switch_send_control(struct __sk_buff *skb, __u32 index, __u64 now_ns)
{
	struct port *port = port_at(index);
	struct transport_header *transport;
	struct packet packet;
	__u64 until_ns;

	packet_noted(skb, &packet);
	until_ns = port_accept_control(port, &packet, now_ns);

	if (until_ns == PORT_FULL) {
		port->drops++;
		return TC_ACT_SHOT;
	}
	if (acknowledging && port->peer < host_count && (transport = packet_transport(skb)) &&
	    transport->kind != TRANSPORT_DATA) {
		if (port_was_down(port, packet.wire_bytes, until_ns - port->propagation_ns))
			port->lost++;
		else
			feedback_note(skb, transport, &packet, until_ns);
		return TC_ACT_SHOT;
	}
	return port_send(skb, index, until_ns);
}

/* A packet has come in at port `index` of a switch. */
static __always_inline int switch_forward(struct __sk_buff *skb, __u32 index, struct packet *packet,
					  __u64 now_ns)
{
	__u32 out = switch_route(skb, index, packet, packet_is_control(packet), now_ns);
	__u64 until_ns;
	__u32 drops;
	int action;

	if (out >= MAX_PORTS) {
		port_at(index)->foreign++;
		return TC_ACT_SHOT;
	}
	if (packet_is_control(packet))
		return switch_send_control(skb, out, now_ns);
	until_ns = port_accept(skb, out, port_at(out), packet, now_ns);
	if (until_ns != PORT_FULL)
		return port_send(skb, out, until_ns);
	/* What is not a frame of the engine has no transport that would know of a trimmed packet. */
	if (!trimming || !packet_transport(skb) || !packet_restamp(skb, packet, TOS_TRIMMED, CONTROL_BYTES)) {
		port_at(out)->drops++;
		return TC_ACT_SHOT;
	}
	drops = port_at(out)->drops;
	action = switch_send_control(skb, out, now_ns);
	port_at(out)->trims += drops == port_at(out)->drops; /* a header that finds no room is a drop */
	return action;
}

#endif
