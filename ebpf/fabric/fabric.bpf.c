// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The testbed's in-kernel fabric: one object, so that all its programs share one set of ports.
 *
 *   engine  -> inject     -[fq]-> far_end -> port_egress -[fq]-> far_end -> ... -> far_end, at a host
 *   program -> nic_egress -[fq]-> far_end -> ...
 *
 * far_end runs where a netkit interface transmits, when sch_fq lets go of a packet: there and then the packet
 * is at the other end of its link.
 */
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
	return port_send(skb, packet.source, nic_accept(skb, packet.source, &packet));
}

/* Egress hook of a NIC's own interface. */
SEC("tc")
int nic_egress(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex - PORT_IFINDEX_BASE;
	struct packet packet;
	__u64 until_ns;

	if (index >= MAX_PORTS)
		return TC_ACT_SHOT;
	if (!packet_parse(skb, &packet)) {
		ports[index].foreign++;
		return TC_ACT_SHOT;
	}
	until_ns = nic_accept(skb, index, &packet);
	return until_ns ? port_hold(skb, index, until_ns) : TC_ACT_SHOT;
}

/* Egress hook of a switch port, and of the trunk. Nothing but port_send gets there: these interfaces have no
 * address, and ARP and IPv6 are off.
 */
SEC("tc")
int port_egress(struct __sk_buff *skb)
{
	return port_hold(skb, skb->mark, (__u64)skb->cb[1] << 32 | skb->cb[0]);
}

SEC("tc")
int far_end(struct __sk_buff *skb)
{
	__u32 index = port_of_arrival(skb);

	__u64 now_ns = bpf_ktime_get_ns();

	if (index >= MAX_PORTS)
		return TC_ACT_SHOT;
	/* Such as after a system call that failed: it moves the clock with interrupts off. (Between two
	 * namespaces the kernel clears the time that we would compare with.)
	 */
	if (skb->tstamp && skb->tstamp != now_ns)
		record_head.late_packets++;
	return index < host_count ? nic_receive(skb, index, now_ns) : switch_forward(skb, index, now_ns);
}

char LICENSE[] SEC("license") = "GPL";
