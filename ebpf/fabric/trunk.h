/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The programs of a run whose ports all share one interface, and the end of a link, which all runs have. */
#ifndef INCASTFREE_FABRIC_TRUNK_H
#define INCASTFREE_FABRIC_TRUNK_H

#include "host.h"
#include "switch.h"

/* One packet socket serves all hosts: its frames go to the NIC of their source. */
SEC("tc")
int inject(struct __sk_buff *skb)
{
	struct packet packet;

	if (!packet_parse(skb, &packet) || packet.source >= host_count || packet.source >= MAX_PORTS)
		return TC_ACT_SHOT;
	if (!trunk)
		return bpf_redirect(PORT_IFINDEX_BASE + packet.source, 0); /* to nic_egress */
	packet_note(skb, &packet);
	return port_send(skb, packet.source, nic_accept(skb, packet.source, &packet));
}

/* Egress hook of a switch port, and of the trunk. Nothing but port_send gets there: these interfaces have no
 * address, and ARP and IPv6 are off.
 */
SEC("tc")
int port_egress(struct __sk_buff *skb)
{
	__u32 index = skb->mark;

	if (real_programs &&
	    index & NIC_SENT_MARK) /* a flow apart from those that its port has still to send */
		index = (index & ~NIC_SENT_MARK) + host_count;
	return port_hold(skb, index, (__u64)skb->cb[1] << 32 | skb->cb[0]);
}

/* What the link did to a packet that has passed it: marked it at dequeue, or lost it. False if it is lost. */
static __always_inline bool link_passed(struct __sk_buff *skb, __u32 index, struct packet *packet,
					__u64 now_ns)
{
	struct port *port = port_at(index);
	__u64 departure_ns = now_ns - port->propagation_ns;
	__u32 number = port->passed;
	bool control = packet_is_control(packet);

	if (!control && port_marks(index, port, packet->wire_bytes, departure_ns) &&
	    (packet->tos & TOS_ECN) == TOS_ECN_CAPABLE)
		packet_restamp(skb, packet, packet->tos | TOS_ECN_MARK, packet->wire_bytes);
	if (control && loss_control)
		number = port->control_passed++;
	if (port_loses(port, index, control, packet->wire_bytes, departure_ns, number)) {
		port->lost++;
		return false;
	}
	return true;
}

/* A packet that left port `left` is at port `index`. */
static __always_inline int pass(struct __sk_buff *skb, __u32 index, __u32 left, struct packet *packet,
				__u64 now_ns)
{
	if (!link_passed(skb, left, packet, now_ns))
		return TC_ACT_SHOT;
	return index < host_count ? nic_receive(skb, index, packet, now_ns)
				  : switch_forward(skb, index, packet, now_ns);
}

/* A packet has come in at port `index`, from port `left`. */
static __always_inline int arrive(struct __sk_buff *skb, __u32 index, __u32 left)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct packet packet;

	/* Such as after a system call that failed: it moves the clock with interrupts off. (Between two
	 * namespaces the kernel clears the time that we would compare with.)
	 */
	if (skb->tstamp && skb->tstamp != now_ns)
		record_head.late_packets++;
	if (!packet_noted(skb, &packet)) {
		port_at(index)->foreign++;
		return TC_ACT_SHOT;
	}
	return pass(skb, index, left, &packet, now_ns);
}

/* Where all ports share one interface; of real programs the NICs do. */
SEC("tc")
int trunk_far_end(struct __sk_buff *skb)
{
	__u32 left = skb->mark;

	if (real_programs) {
		if (!(left & NIC_SENT_MARK))
			return nic_sent(skb, left);
		left &= ~NIC_SENT_MARK;
	}
	if (left >= MAX_PORTS || port_at(left)->peer >= MAX_PORTS)
		return TC_ACT_SHOT;
	return arrive(skb, port_at(left)->peer, left);
}

#endif
