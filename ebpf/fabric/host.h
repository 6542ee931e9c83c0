/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The hosts' end: where the engine's frames enter, the NIC that paces and serialises them, and the NIC
 * that receives them.
 *
 * The pacing is that of ../nic/pacer.bpf.c (the same edt.h, the same rate table). What differs is the
 * port behind it: here the NIC serialises at line rate with a virtual queue, in the same hold as the
 * pacing. For that the engine must offer the packets of a host in the order of their departure, as a
 * NIC's scheduler would; it computes the same clocks.
 */
#ifndef INCASTFREE_FABRIC_HOST_H
#define INCASTFREE_FABRIC_HOST_H

#include "port.h"

/* When a packet of host `index` will be at its leaf: paced, then serialised. 0 if it cannot be sent. */
static __always_inline __u64 nic_accept(struct __sk_buff *skb, __u32 index, const struct packet *packet)
{
	struct transport *transport = packet_transport(skb);
	struct rate_table *table;
	struct edt_flow *flow;
	__u64 ready_ns;
	__u32 key = index;

	table = bpf_map_lookup_elem(&rate_tables, &key);
	key = index * host_count + packet->destination;
	flow = bpf_map_lookup_elem(&edt_flows, &key);
	if (!table || !flow)
		return 0;
	/* A frame of the engine is offered ahead of time and says when it is ready. */
	ready_ns = edt_depart(flow, transport ? transport->ready_ns : bpf_ktime_get_ns(),
			      wire_time_ns(packet->wire_bytes, ports[index].byte_ns),
			      rate_table_steps(table, packet->destination));
	return port_accept(index, &ports[index], packet, ready_ns);
}

/* A packet has come in at the NIC of host `index`. */
static __always_inline int nic_receive(struct __sk_buff *skb, __u32 index, __u64 now_ns)
{
	struct receive *receive;
	struct packet packet;
	__u32 key;

	if (!packet_parse(skb, &packet) || packet.destination != index) {
		ports[index].foreign++;
		return TC_ACT_SHOT;
	}
	if (!packet_transport(skb))
		return TC_ACT_OK; /* to the real stack */
	key = packet.source * host_count + index;
	receive = bpf_map_lookup_elem(&receives, &key);
	if (!receive)
		return TC_ACT_SHOT;
	if (!receive->packets)
		receive->first_ns = now_ns;
	receive->last_ns = now_ns;
	receive->packets++;
	receive->bytes += packet.wire_bytes;
	record_head.delivered_packets++;
	record_head.delivered_bytes += packet.wire_bytes;
	return TC_ACT_SHOT;
}

#endif
