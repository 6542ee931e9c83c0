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
	/* When all data that was accepted so far will have reached the far end: end of serialisation plus
	 * propagation. The queue at time t is what lies between t + propagation and this.
	 */
	__u64 clear_ns;
	__u64 control_clear_ns; /* the same of control packets */
	__u64 limit_ns; /* deepest queue of data, as time to serialise it; 0 is unlimited */
	__u64 byte_ns; /* time to serialise one byte: see wire_time.h */
	__u32 propagation_ns;
	__u32 peer; /* port at the other end of the link */
	__u32 routes; /* of the switch that the port belongs to: index of its route to host 0 */
	__u32 salt; /* of that switch's path hash */
	/* Data packets accepted, and arrived at the far end; and their bytes, modulo 2^32. */
	__u32 accepted, accepted_bytes;
	__u32 passed, passed_bytes;
	/* For marking: arrivals before `cursor` came no later than the latest departure that was looked at.
	 */
	__u32 cursor, cursor_bytes;
	__u32 control; /* packets accepted */
	__u32 marks;
	__u64 down_ns, up_ns; /* the link fails in between */
	__u32 drops, trims;
	__u32 lost; /* on a link that failed, or by chance */
	__u32 control_passed; /* counted where control may be lost by chance */
	__u32 debt_bytes; /* of answers that were computed through; the next data packet that is accepted pays
			   */
	__u32 foreign; /* packets that are not IPv4 to a host of the testbed */
	__u32 data_service_ns; /* a switch that is a process serves a packet in so long, whatever its size */
	__u32 control_service_ns;
};

/* One data packet that a port accepted, for what was in the queue when another one left it. */
struct arrival {
	__u64 arrival_ns;
	__u32 accepted_bytes; /* with it */
	__u32 reserved;
};

#define ARRIVAL_CAPACITY (1u << 21) /* of all ports together */

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
	__u64 feedback_written; /* likewise */
	__u64 delivered_bytes; /* wire bytes that reached their hosts, each packet once */
	__u64 delivered_packets;
	__u64 late_packets; /* that came later than they were due, by more than is tolerated */
	__u64 acks, nacks; /* sent */
	__u64 last_ns; /* latest time at which a packet will be at the end of a link */
	__u64 lateness_max_ns;
	__u64 timed; /* how often it was looked whether something was late */
	__u64 came_packets; /* data at NICs, in whatever state and however often */
	/* Of background flows, at their hosts; in no other count but came_packets. */
	__u64 background_delivered, background_trimmed;
	__u64 delivered_ns; /* when the latest of delivered_packets came */
};

/* An ACK or NACK, noted before it is at its host: at the latest where it enters the last link. In this time
 * the engine must learn of it to act on it when it arrives.
 */
struct feedback {
	__u64 arrival_ns; /* at the sender of the data */
	__u64 received_bytes;
	__u64 sack;
	__u32 sack_base;
	__u32 cumulative;
	__u32 psn;
	__u16 source, destination; /* of the data */
	__u8 kind;
	__u8 flags;
	__u8 copy;
	__u8 entropy; /* value of the packet that is answered */
	__u32 reserved;
};

#define FEEDBACK_CAPACITY (1u << 17)

/* Receive side of one flow. */
struct receive {
	__u64 bytes; /* wire bytes, each packet once */
	__u64 first_ns;
	__u64 last_ns;
	__u32 packets; /* likewise */
	__u32 total; /* packets of the flow */
	__u32 word; /* where its bits in `received` start */
	__u32 cumulative; /* all packets below have come in */
	__u32 pending_bytes; /* that no ACK has answered yet */
	__u32 duplicates;
	__u32 trimmed;
	__u32 ack_request; /* answer once more when no packet is missing */
	__u32 pending; /* packets that no ACK has answered yet */
	__u32 reserved;
};

#define RECEIVED_WORDS (1u << 21) /* of 64 packets; each flow starts with a word of its own */

/* Data for which the receiver owes an ACK at once (UEC; facts: uet-htsim). */
#define ACK_BYTES 16384
/* And never more packets than its SACK can name. */
#define ACK_PACKETS 32

#endif
