/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* A switch: where a packet comes in, the output port is picked and its queue charged; sch_fq there holds it.
 *
 * Nothing here knows of leaves, spines or tiers: routes are tables that Python computes from the topology.
 */
#ifndef INCASTFREE_FABRIC_SWITCH_H
#define INCASTFREE_FABRIC_SWITCH_H

#include "mix.h"
#include "port.h"

/* Equal-cost multipath: which of `ways` members the five-tuple takes at this switch. The salt differs from
 * switch to switch and from seed to seed, so that tiers do not polarise. The multipliers are odd numbers with
 * well-mixed bits (the primes of xxHash32).
 */
static __always_inline __u32 ecmp_member(__u32 salt, const struct packet *packet, __u32 ways)
{
	__u32 hash = mix32(salt + packet->source * 0x9e3779b1 + packet->destination * 0x85ebca77 +
			   packet->ports * 0xc2b2ae3d);

	return ((__u64)hash * ways) >> 32;
}

/* A packet has come in at port `index` of a switch. */
static __always_inline int switch_forward(struct __sk_buff *skb, __u32 index, __u64 now_ns)
{
	struct packet packet;
	__u32 route, ways, out;

	if (!packet_parse(skb, &packet))
		goto foreign;
	route = routes[(ports[index].routes + packet.destination) & (MAX_ROUTES - 1)];
	ways = route >> ROUTE_WAYS_SHIFT;
	out = route & ROUTE_INDEX_MASK;
	if (ways > 1)
		out = members[(out + ecmp_member(ports[index].salt, &packet, ways)) & (MAX_MEMBERS - 1)];
	else if (!ways)
		goto foreign;
	if (out >= MAX_PORTS)
		goto foreign;
	return port_send(skb, out, port_accept(out, &ports[out], &packet, now_ns));

foreign:
	ports[index].foreign++;
	return TC_ACT_SHOT;
}

#endif
