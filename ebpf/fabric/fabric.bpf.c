// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The testbed's in-kernel fabric: one object, so that all its programs share one set of ports.
 *
 *   engine  -> inject     -[fq]-> far_end -> port_egress -[fq]-> far_end -> ... -> far_end, at a host
 *   program -> nic_egress -[fq]-> far_end -> port_egress -[fq]-> trunk_far_end -> port_egress -[fq]-> far_end
 * -> ...
 *
 * far_end runs where a netkit interface transmits, when sch_fq lets go of a packet: there and then the packet
 * is at the other end of its link.
 */
#include "trunk.h"

/* Egress hook of a NIC's own interface. */
SEC("tc")
int nic_egress(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex - PORT_IFINDEX_BASE;
	struct packet packet;
	__u64 until_ns = (__u64)skb->cb[1] << 32 | skb->cb[0];

	if (index >= MAX_PORTS)
		return TC_ACT_SHOT;
	if (skb->mark == PORT_ACCEPTED_MARK) /* by nic_answer: accepted already */
		return port_hold(skb, index, until_ns);
	if (!packet_parse(skb, &packet)) {
		port_at(index)->foreign++;
		return TC_ACT_SHOT;
	}
	if (real_programs && !veth) {
		skb->priority = 0;
		until_ns = nic_pace(skb, index, &packet);
		packet_note(skb, &packet);
		skb->tstamp = until_ns;
		/* What no connection owns, sch_fq tells apart by its hash. */
		bpf_set_hash(skb, packet.destination + 1);
		return TC_ACT_OK;
	}
	until_ns = nic_accept(skb, index, &packet);
	if (until_ns == PORT_FULL)
		return TC_ACT_SHOT;
	packet_note(skb, &packet);
	if (veth)
		packet_set_due(skb, until_ns);
	return port_hold(skb, index, until_ns);
}

SEC("tc")
int far_end(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex - PORT_IFINDEX_BASE;

	if (index >= MAX_PORTS || port_at(index)->peer >= MAX_PORTS)
		return TC_ACT_SHOT;
	if (real_programs && port_at(index)->peer < host_count)
		return nic_transmit(skb, port_at(index)->peer, bpf_ktime_get_ns());
	return arrive(skb, index, port_at(index)->peer);
}

/* ---- links of veth ----
 *
 * There the clock runs on while the packet is on its way, or a process has had it in between: it is taken to
 * come when it was due, and how late it really was is noted.
 */
static __always_inline void note_lateness(__u64 due_ns, __u64 now_ns)
{
	__u64 late_ns = now_ns > due_ns ? now_ns - due_ns : 0;

	record_head.timed++;
	if (late_ns > tolerance_ns)
		record_head.late_packets++;
	if (late_ns > record_head.lateness_max_ns)
		record_head.lateness_max_ns = late_ns;
}

static __always_inline __u64 veth_arrival(struct __sk_buff *skb, __u64 now_ns)
{
	__u64 due_ns = packet_due(skb, now_ns);

	note_lateness(due_ns, now_ns);
	return due_ns;
}

/* Ingress hook of a NIC, and of a switch port of the in-kernel fabric. */
SEC("tc")
int veth_far_end(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex - PORT_IFINDEX_BASE;
	struct packet packet;

	if (index >= MAX_PORTS || port_at(index)->peer >= MAX_PORTS)
		return TC_ACT_SHOT;
	if (!packet_parse(skb, &packet)) {
		port_at(index)->foreign++;
		return TC_ACT_SHOT;
	}
	packet_note(skb, &packet);
	return pass(skb, index, port_at(index)->peer, &packet, veth_arrival(skb, bpf_ktime_get_ns()));
}

/* Ingress hook of a switch port of BMv2, whose packet socket has its copy by now (net/core/dev.c: taps come
 * before tc).
 */
SEC("tc")
int process_ingress(struct __sk_buff *skb)
{
	veth_arrival(skb, bpf_ktime_get_ns());
	return TC_ACT_SHOT;
}

/* When BMv2 was due to serve a packet that came at arrival_ns, by its own rule: at once, or so long after the
 * one before of its priority. *due_ns is that of the one before, and then of this one.
 */
static __always_inline __u64 service_due(__u64 *due_ns, __u64 arrival_ns, __u32 service_ns)
{
	*due_ns = arrival_ns > *due_ns + service_ns ? arrival_ns : *due_ns + service_ns;
	return *due_ns;
}

/* Egress hook of a switch port of BMv2, when it begins to serve the packet: the link adds what BMv2 does not
 * know of, the packet's own time on the wire and the propagation. An ACK whose next hop is its host ends
 * here, as in the kernel's own fabric (switch.h).
 */
SEC("tc")
int process_egress(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex - PORT_IFINDEX_BASE;
	__u64 now_ns = bpf_ktime_get_ns();
	struct transport_header *transport;
	struct packet packet;
	struct port *port;
	__u64 until_ns;

	if (index >= MAX_PORTS)
		return TC_ACT_SHOT;
	port = port_at(index);
	if (!packet_parse(skb, &packet)) {
		port->foreign++;
		return TC_ACT_STOLEN; /* not SHOT, which the sender would see as an error */
	}
	until_ns = now_ns + wire_time_ns(packet.wire_bytes, port->byte_ns) + port->propagation_ns;
	packet_note(skb, &packet);
	if (!packet_is_control(&packet)) {
		port_record(skb, index, &packet, packet_due(skb, now_ns), until_ns);
		note_lateness(service_due(&port->clear_ns, packet_due(skb, now_ns), port->data_service_ns),
			      now_ns);
		packet_set_due(skb, until_ns);
		return port_hold(skb, index, until_ns);
	}
	port->control++;
	note_lateness(service_due(&port->control_clear_ns, packet_due(skb, now_ns), port->control_service_ns),
		      now_ns);
	if (until_ns > record_head.last_ns)
		record_head.last_ns = until_ns;
	transport = packet_transport(skb);
	if (acknowledging && port->peer < host_count && transport && transport->kind != TRANSPORT_DATA) {
		feedback_note(skb, transport, &packet, until_ns);
		return TC_ACT_STOLEN;
	}
	packet_set_due(skb, until_ns);
	return port_hold(skb, index, until_ns);
}

char LICENSE[] SEC("license") = "GPL";
