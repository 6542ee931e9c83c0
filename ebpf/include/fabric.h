/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* State that the testbed's fabric programs share with Python and the engine.
 *
 * All times here are the kernel's: fabric time multiplied by the dilation. Port p is the interface with
 * index PORT_IFINDEX_BASE + p in whichever namespace it lies; ports 0 to N-1 are the hosts' NICs. With a
 * trunk all ports share one interface instead, and a packet's mark says at which port it is.
 */
#ifndef INCASTFREE_FABRIC_H
#define INCASTFREE_FABRIC_H

#include "wire_time.h"

#define PORT_IFINDEX_BASE 1000
#define TRUNK_IFINDEX     992

struct port {
	/* When all that was accepted so far will have reached the far end: end of serialisation plus
	 * propagation. The queue at time t is what lies between t + propagation and this.
	 */
	__u64 clear_ns;
	__u64 limit_ns; /* deepest queue, as time to serialise it; 0 is unlimited */
	__u64 byte_ns; /* time to serialise one byte: see wire_time.h */
	__u32 propagation_ns;
	__u32 routes; /* of the switch that the port belongs to: index of its route to host 0 */
	__u32 salt; /* of that switch's path hash */
	__u32 peer; /* port at the other end of the link */
	__u64 drops;
	__u64 foreign; /* packets that are not IPv4 to a host of the testbed */
	__u64 reserved2;
};

/* Route to a host: ROUTE_WAYS_SHIFT bits of index below the number of ways. One way: the index is that of the
 * port; more: of the first of so many members, over which the switch hashes. 0 ways: none.
 */
#define ROUTE_WAYS_SHIFT 20
#define ROUTE_INDEX_MASK ((1u << ROUTE_WAYS_SHIFT) - 1)

/* One packet accepted by a port, in the order of acceptance: what queues are measured from. */
struct record {
	__u64 arrival_ns; /* at the port */
	__u64 far_end_ns; /* whole packet at the other end of the link */
	__u16 port;
	__u16 wire_bytes;
	__u16 source;
	__u16 destination;
	__u32 psn;
	__u32 reserved;
};

#define RECORD_CAPACITY (1u << 18)

struct record_head {
	__u64 written; /* since the engine last took them; what is above the capacity was not kept */
	__u64 delivered_bytes; /* wire bytes that reached their hosts */
	__u64 delivered_packets;
	__u64 late_packets; /* that did not come when they were due */
};

/* Receive side of one flow. */
struct receive {
	__u64 bytes; /* wire bytes */
	__u64 packets;
	__u64 first_ns;
	__u64 last_ns;
};

#endif
