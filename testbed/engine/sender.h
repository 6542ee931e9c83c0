/* SPDX-License-Identifier: Apache-2.0 */
/* What a host sends next, and when: the engine's half of a NIC's scheduler. */
#ifndef INCASTFREE_SENDER_H
#define INCASTFREE_SENDER_H

#include <stdint.h>

#include "edt.h"

enum discipline {
	ROUND_ROBIN, /* one packet a turn of every unfinished flow; the port alone sets the pace */
	PACED, /* earliest departure first, by the NIC's own clocks */
};

struct flow { /* as Python lays them out: see testbed/engine/__init__.py */
	uint32_t source, destination;
	uint64_t ready_ns; /* earliest departure, after the sender's start */
	uint32_t packets;
	uint32_t last_bytes; /* wire bytes of the last packet; the others have the MTU */
	uint32_t steps; /* of the line rate, as in the NIC's rate table; 0: not paced */
	uint32_t reserved;
};

struct sender_flow {
	const struct flow *flow;
	struct edt_flow clock; /* the NIC's, as it will be after the next packet */
	uint64_t ready_ns, next_ns; /* ready_ns as kernel time; departure of the next packet */
	uint32_t sent; /* packets */
	uint32_t next; /* round robin: the flow after this one */
};

struct heap_entry { /* the key lies in the heap: a look at the flows would miss the cache at every level */
	uint64_t next_ns;
	uint32_t flow;
};

struct sender {
	enum discipline discipline;
	uint64_t byte_ns; /* of the host's port */
	uint64_t clear_ns; /* when its port will have serialised all that was sent */
	uint32_t mtu_bytes;
	struct sender_flow *flows;
	uint32_t active; /* flows that have packets left */
	uint32_t turn, previous; /* round robin */
	struct heap_entry *heap; /* paced: flows by next_ns, then by their order */
};

struct packet {
	uint32_t source, destination, psn, wire_bytes;
	uint64_t ready_ns;
};

/* flows: count of them, all of one source, in round-robin order. storage for count entries each. */
void sender_init(struct sender *sender, enum discipline discipline, const struct flow *flows, uint32_t count,
		 uint64_t start_ns, uint64_t byte_ns, uint32_t mtu_bytes, struct sender_flow *flow_storage,
		 struct heap_entry *heap_storage);
/* When the next packet starts into the port, UINT64_MAX if there is none. */
uint64_t sender_next_ns(const struct sender *sender);
/* Takes that packet. */
void sender_take(struct sender *sender, struct packet *packet);

#endif
