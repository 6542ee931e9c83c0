/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The hosts' end: where the engine's frames enter, the NIC that paces and serialises them, and the NIC
 * that receives them and answers.
 *
 * The pacing is that of ../nic/pacer.bpf.c (the same edt.h, the same rate table). What differs is the
 * port behind it: here the NIC serialises at line rate with a virtual queue, in the same hold as the
 * pacing. For that the engine must offer the packets of a host in the order of their departure, as a
 * NIC's scheduler would; it computes the same clocks.
 */
#ifndef INCASTFREE_FABRIC_HOST_H
#define INCASTFREE_FABRIC_HOST_H

#include "switch.h"

/* When a packet of host `index` will be at its leaf: paced, then serialised. 0 if it cannot be sent. */
static __always_inline __u64 nic_accept(struct __sk_buff *skb, __u32 index, const struct packet *packet)
{
	struct transport_header *transport = packet_transport(skb);
	struct rate_table *table;
	struct edt_flow *flow;
	__u64 ready_ns;
	__u32 key = index;

	if (packet_is_control(packet))
		return port_accept_control(port_at(index), packet, bpf_ktime_get_ns());
	table = bpf_map_lookup_elem(&rate_tables, &key);
	key = index * host_count + packet->destination;
	flow = bpf_map_lookup_elem(&edt_flows, &key);
	if (!table || !flow)
		return PORT_FULL;
	/* A background flow has a pace of its own, which the engine keeps. */
	if (transport && transport->flags & TRANSPORT_BACKGROUND)
		return port_accept(skb, index, port_at(index), packet, transport->ready_ns);
	/* A frame of the engine is offered ahead of time and says when it is ready. */
	ready_ns = edt_depart(flow, transport ? transport->ready_ns : bpf_ktime_get_ns(),
			      wire_time_ns(packet->wire_bytes, port_at(index)->byte_ns),
			      rate_table_steps(table, packet->destination));
	return port_accept(skb, index, port_at(index), packet, ready_ns);
}

/* ---- real programs ----
 *
 * Their packets come in whatever order the programs send them in, so that pacing and port are two holds: the
 * sch_fq of the host's interface lets each flow's packets go when they are earned, and then the port takes
 * them as they come.
 */

/* In skb->priority: sch_fq sends these at once, past those that wait (TC_PRIO_CONTROL). */
#define PRIORITY_AT_ONCE 7

/* When a packet of a real program at host `index` may leave for the port. ACKs, which R does not count, and
 * which would wait for the pace of the way back, are not paced.
 */
static __always_inline __u64 nic_pace(struct __sk_buff *skb, __u32 index, const struct packet *packet)
{
	struct connection connection = packet_connection(skb, packet);
	__u64 now_ns = bpf_ktime_get_ns();
	struct rate_table *table;
	struct receive *receive;
	struct edt_flow *flow;
	__u32 key = index;

	table = bpf_map_lookup_elem(&rate_tables, &key);
	key = index * host_count + packet->destination;
	flow = bpf_map_lookup_elem(&edt_flows, &key);
	receive = bpf_map_lookup_elem(&receives, &key);
	if (!table || !flow || !receive)
		return now_ns;
	if (!bpf_map_lookup_elem(&connections, &connection)) {
		__u32 number = receive->total++;

		bpf_map_update_elem(&connections, &connection, &number, BPF_ANY);
	}
	if (packet_is_control(packet) || packet_is_pure_ack(skb, packet)) {
		skb->priority = PRIORITY_AT_ONCE;
		return now_ns;
	}
	return edt_depart(flow, now_ns, wire_time_ns(packet->wire_bytes, port_at(index)->byte_ns),
			  rate_table_steps(table, packet->destination));
}

/* In skb->mark, beside the port: its NIC has sent the packet, which is on the link. */
#define NIC_SENT_MARK 0x40000000

/* sch_fq has let go of a packet of a real program at host `index`: it goes through the port, which lies in
 * the switches' namespace.
 */
static __always_inline int nic_transmit(struct __sk_buff *skb, __u32 index, __u64 now_ns)
{
	struct port *port = port_at(index);
	struct packet packet;
	__u64 sent_ns;

	if (!packet_noted(skb, &packet)) {
		port->foreign++;
		return TC_ACT_SHOT;
	}
	sent_ns = packet_is_control(&packet) ? port_accept_control(port, &packet, now_ns)
					     : port_accept(skb, index, port, &packet, now_ns);
	sent_ns -= port->propagation_ns;
	skb->priority = 0;
	skb->mark = index;
	skb->cb[0] = (__u32)sent_ns;
	skb->cb[1] = (__u32)(sent_ns >> 32);
	packet_note(skb, &packet);
	return bpf_redirect(TRUNK_IFINDEX, 0);
}

/* The port has sent it. Until then it is its socket's, which has only so much under way to its NIC (small
 * queues, net/ipv4/tcp_output.c); the link is the socket's no more, and a clone is nobody's.
 */
static __always_inline int nic_sent(struct __sk_buff *skb, __u32 index)
{
	__u64 until_ns = bpf_ktime_get_ns() + port_at(index)->propagation_ns;

	skb->mark = index | NIC_SENT_MARK;
	skb->cb[0] = (__u32)until_ns;
	skb->cb[1] = (__u32)(until_ns >> 32);
	bpf_clone_redirect(skb, TRUNK_IFINDEX, 0);
	return TC_ACT_SHOT;
}

/* Counts a packet of a real program that is at host `index`. */
static __always_inline void nic_count(__u32 index, const struct packet *packet, __u64 now_ns)
{
	__u32 key = packet->source * host_count + index;
	struct receive *receive = bpf_map_lookup_elem(&receives, &key);

	if (!receive || packet->source >= host_count)
		return;
	if (!receive->packets)
		receive->first_ns = now_ns;
	receive->last_ns = now_ns;
	receive->packets++;
	receive->bytes += packet->wire_bytes;
}

/* ---- receive side ---- */

/* Moves `cumulative` over what has come in. It may stop short, and then goes on with the next packet. */
#define CUMULATIVE_STEPS 1024

static __always_inline void receive_advance(struct receive *receive)
{
	__u32 cumulative = receive->cumulative;

	if (receive->packets == receive->total) {
		receive->cumulative = receive->total;
		return;
	}
	for (int i = 0; i < CUMULATIVE_STEPS; i++) {
		__u64 word = received[(receive->word + (cumulative >> 6)) & (RECEIVED_WORDS - 1)];

		if (cumulative >= receive->total || !(word >> (cumulative & 63) & 1))
			break;
		cumulative++;
	}
	receive->cumulative = cumulative;
}

/* 64 bits from packet `base` on. */
static __always_inline __u64 receive_window(const struct receive *receive, __u32 base)
{
	__u32 word = receive->word + (base >> 6);
	__u64 low = received[word & (RECEIVED_WORDS - 1)] >> (base & 63);

	if (!(base & 63))
		return low;
	return low | received[(word + 1) & (RECEIVED_WORDS - 1)] << (64 - (base & 63));
}

/* What an answer says of the flow, whether it becomes a packet or not. */
struct answer {
	__u64 sack;
	__u32 sack_base;
	__u8 kind;
	__u8 flags;
};

static __always_inline void answer_fill(struct answer *answer, const struct packet *packet,
					const struct receive *receive, __u8 data_flags, __u8 kind, __u32 psn)
{
	bool marked = (packet->tos & TOS_ECN) == TOS_ECN_MARK;

	/* Up to the packet: what no earlier answer has named lies there. (The reference simulator's receiver
	 * names packets from a marked one on, which leaves holes to a sender that looks for losses.)
	 */
	answer->sack_base = psn >= receive->cumulative + 64 ? psn - 63 : receive->cumulative + 1;
	answer->sack = receive_window(receive, answer->sack_base);
	answer->kind = kind;
	answer->flags = (data_flags & TRANSPORT_RETRANSMISSION) | (marked ? TRANSPORT_ECN_ECHO : 0);
}

/* Computes the way of an answer that leaves host `index` at now_ns, so that it need not be carried: when it
 * is at its host; 0 if it is lost. It waits for control that is queued already. Its time is charged to the
 * data of the ports that it crosses, up to its own travel time too early. Answers do not wait for each other.
 */
#define ANSWER_HOPS 12

static __noinline __u64 answer_travel(struct __sk_buff *skb, __u32 index, struct packet *packet, __u64 now_ns)
{
	__u64 time_ns = now_ns;

	for (int hop = 0; hop < ANSWER_HOPS; hop++) {
		struct port *port;
		__u64 idle_ns, clear_ns, wire_ns;

		if (index >= MAX_PORTS)
			return 0;
		port = port_at(index);
		idle_ns = time_ns + port->propagation_ns;
		wire_ns = wire_time_ns(CONTROL_BYTES, port->byte_ns);
		clear_ns = (port->control_clear_ns > idle_ns ? port->control_clear_ns : idle_ns) + wire_ns;
		if (port->limit_ns && clear_ns - idle_ns > 2 * port->limit_ns) {
			port->drops++;
			return 0;
		}
		port->control++;
		if (hop)
			port->debt_bytes += CONTROL_BYTES;
		else
			port->clear_ns = (port->clear_ns > idle_ns ? port->clear_ns : idle_ns) + wire_ns;
		if (port_loses(port, index, true, CONTROL_BYTES, clear_ns - port->propagation_ns,
			       port->control)) {
			port->lost++;
			return 0;
		}
		time_ns = clear_ns;
		index = port->peer;
		if (index < host_count)
			return time_ns;
		index = switch_route(skb, index, packet, true, time_ns);
	}
	return 0;
}

/* Turns the packet into its answer, in place, and sends it back. */
static __always_inline int answer_send(struct __sk_buff *skb, __u32 index, struct packet *packet,
				       const struct answer *answer, const struct receive *receive,
				       __u64 now_ns)
{
	struct transport_header *transport = packet_transport(skb);
	__be32 address;
	void *data;

	if (!transport)
		return TC_ACT_SHOT;
	transport->sack_base = answer->sack_base;
	transport->sack = answer->sack;
	transport->cumulative = receive->cumulative;
	transport->received_bytes = receive->bytes;
	transport->kind = answer->kind;
	transport->flags = answer->flags;
	if (!packet_restamp(skb, packet, TOS_CONTROL, CONTROL_BYTES))
		return TC_ACT_SHOT;
	data = packet_start(skb);
	if (data + FRAME_BYTES > packet_end(skb))
		return TC_ACT_SHOT;
	address = *(__be32 *)(data + IPV4_SOURCE_OFFSET);
	*(__be32 *)(data + IPV4_SOURCE_OFFSET) = *(__be32 *)(data + IPV4_DESTINATION_OFFSET);
	*(__be32 *)(data + IPV4_DESTINATION_OFFSET) = address;
	packet_note(skb, packet);
	return port_send(skb, index, port_accept_control(port_at(index), packet, now_ns));
}

/* Answers a packet at host `index`. */
static __always_inline int nic_answer(struct __sk_buff *skb, __u32 index, struct packet *packet,
				      struct receive *receive, __u8 kind, __u32 psn, __u64 now_ns)
{
	struct transport_header *transport = packet_transport(skb);
	struct feedback *entry;
	struct answer answer;
	__u64 arrival_ns;
	__u32 host;

	if (!transport)
		return TC_ACT_SHOT;
	answer_fill(&answer, packet, receive, transport->flags, kind, psn);
	if (kind == TRANSPORT_NACK)
		record_head.nacks++;
	else
		record_head.acks++;
	host = packet->source;
	packet->source = packet->destination;
	packet->destination = host;
	if (!trunk)
		return answer_send(skb, index, packet, &answer, receive, now_ns);
	arrival_ns = answer_travel(skb, index, packet, now_ns);
	transport = packet_transport(skb);
	if (!arrival_ns || !transport)
		return TC_ACT_SHOT;
	entry = feedback_new(skb, packet, arrival_ns);
	entry->received_bytes = receive->bytes;
	entry->sack = answer.sack;
	entry->sack_base = answer.sack_base;
	entry->cumulative = receive->cumulative;
	entry->kind = answer.kind;
	entry->flags = answer.flags;
	entry->copy = transport->copy;
	return TC_ACT_SHOT;
}

/* A data packet of the engine, or what was left of it, is at host `index`. */
static __noinline int nic_receive_data(struct __sk_buff *skb, __u32 index, __u64 now_ns)
{
	struct transport_header *transport = packet_transport(skb);
	__u32 psn = packet_psn(skb), key;
	struct receive *receive;
	struct packet packet;
	bool answer, trimmed;
	__u64 *word, bit;

	packet_noted(skb, &packet);
	key = packet.source * host_count + index;
	receive = bpf_map_lookup_elem(&receives, &key);
	trimmed = packet.tos == TOS_TRIMMED;
	index &= MAX_PORTS - 1;
	if (!receive || !transport)
		return TC_ACT_SHOT;
	record_head.came_packets++;
	if (transport->flags & TRANSPORT_BACKGROUND) {
		if (trimmed)
			record_head.background_trimmed++;
		else
			record_head.background_delivered++;
		return TC_ACT_SHOT;
	}
	word = &received[(receive->word + (psn >> 6)) & (RECEIVED_WORDS - 1)];
	bit = 1ULL << (psn & 63);
	if (trimmed) {
		receive->trimmed++;
		if (!acknowledging)
			return TC_ACT_SHOT;
		return nic_answer(skb, index, &packet, receive, *word & bit ? TRANSPORT_ACK : TRANSPORT_NACK,
				  psn, now_ns);
	}
	if (*word & bit) {
		receive->duplicates++;
		receive->pending_bytes = receive->pending = 0;
		return acknowledging ? nic_answer(skb, index, &packet, receive, TRANSPORT_ACK, psn, now_ns)
				     : TC_ACT_SHOT;
	}
	*word |= bit;
	if (!receive->packets)
		receive->first_ns = now_ns;
	receive->last_ns = now_ns;
	receive->packets++;
	receive->bytes += packet.wire_bytes;
	record_head.delivered_packets++;
	record_head.delivered_ns = now_ns;
	record_head.delivered_bytes += packet.wire_bytes;
	if (!acknowledging)
		return TC_ACT_SHOT;

	receive_advance(receive);
	receive->pending_bytes += packet.wire_bytes;
	receive->pending++;
	answer = (packet.tos & TOS_ECN) == TOS_ECN_MARK || receive->pending_bytes >= ACK_BYTES ||
		 receive->pending >= ACK_PACKETS || receive->packets == 1;
	if (transport->flags & TRANSPORT_ACK_REQUEST) {
		receive->ack_request = 1;
		answer = true;
	}
	if (receive->ack_request && receive->packets == receive->cumulative) {
		receive->ack_request = 0;
		answer = true;
	}
	if (!answer)
		return TC_ACT_SHOT;
	receive->pending_bytes = receive->pending = 0;
	return nic_answer(skb, index, &packet, receive, TRANSPORT_ACK, psn, now_ns);
}

/* A packet has come in at the NIC of host `index`. */
static __always_inline int nic_receive(struct __sk_buff *skb, __u32 index, struct packet *packet,
				       __u64 now_ns)
{
	if (packet->destination != index) {
		port_at(index)->foreign++;
		return TC_ACT_SHOT;
	}
	if (real_programs) {
		nic_count(index, packet, now_ns);
		return TC_ACT_OK; /* to the real stack */
	}
	if (!packet_transport(skb))
		return TC_ACT_OK;
	return nic_receive_data(skb, index, now_ns);
}

#endif
