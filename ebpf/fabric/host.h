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

/* One packet socket serves all hosts: its frames are handed on to the NIC of their source. */
SEC("tc")
int inject(struct __sk_buff *skb)
{
	struct packet packet;

	if (!packet_parse(skb, &packet) || packet.source >= host_count)
		return TC_ACT_SHOT;
	return bpf_redirect(PORT_IFINDEX_BASE + packet.source, 0);
}

SEC("tc")
int nic_egress(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex - PORT_IFINDEX_BASE;
	struct transport *transport;
	struct rate_table *table;
	struct edt_flow *flow;
	struct packet packet;
	__u64 ready_ns;
	__u32 key;

	if (index >= MAX_PORTS)
		return TC_ACT_SHOT;
	if (!packet_parse(skb, &packet)) {
		ports[index].foreign++;
		return TC_ACT_SHOT;
	}
	key = index;
	table = bpf_map_lookup_elem(&rate_tables, &key);
	key = index * host_count + packet.destination;
	flow = bpf_map_lookup_elem(&edt_flows, &key);
	if (!table || !flow)
		return TC_ACT_SHOT;
	/* A frame of the engine is offered ahead of time and says when it is ready. */
	transport = packet_transport(skb);
	ready_ns = edt_depart(flow, transport ? transport->ready_ns : bpf_ktime_get_ns(),
			      wire_time_ns(packet.wire_bytes, ports[index].byte_ns),
			      rate_table_steps(table, packet.destination));
	return port_hold(skb, port_accept(index, &ports[index], &packet, ready_ns));
}

SEC("tc")
int nic_ingress(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex - PORT_IFINDEX_BASE;
	struct receive *receive;
	struct packet packet;
	__u64 now_ns;
	__u32 key;

	if (index >= MAX_PORTS)
		return TC_ACT_SHOT;
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
	now_ns = bpf_ktime_get_ns();
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
