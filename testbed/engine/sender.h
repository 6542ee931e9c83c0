/* SPDX-License-Identifier: Apache-2.0 */
/* What a host sends next, and when: the engine's half of a NIC's scheduler. */
#ifndef INCASTFREE_SENDER_H
#define INCASTFREE_SENDER_H

#include <stdbool.h>
#include <stdint.h>

#include "edt.h"
#include "background.h"
#include "transport.h"

enum discipline {
	ROUND_ROBIN, /* one packet a turn of every flow that may send; the port alone sets the pace */
	PACED, /* earliest departure first, by the NIC's own clocks */
	SELF_PACED, /* the same by clocks that the engine keeps: the NIC takes what comes */
	STAGED, /* one flow at a time, in the order of a plan; what is lost goes first */
	DEFICIT, /* deficit round robin (Shreedhar, Varghese, SIGCOMM 1995): bytes a turn, not packets */
};

struct stage { /* of one sender; as Python lays them out: see testbed/engine/__init__.py */
	uint32_t source, destination;
	uint32_t packets; /* of the flow, that have been sent when the stage is over */
	uint32_t number; /* of the stage, the same for all senders */
	uint64_t start_ns; /* not before, after the common start */
};

struct sender_stage {
	uint32_t flow, packets, number;
	uint64_t start_ns; /* kernel time */
};

struct heap_entry { /* the key lies in the heap: a look at the flows would miss the cache at every level */
	uint64_t next_ns;
	uint32_t flow;
};

struct sender {
	enum discipline discipline;
	uint64_t byte_ns; /* of the host's port */
	uint64_t clear_ns; /* when its port will have serialised all that was sent */
	uint32_t count; /* flows */
	uint32_t waiting; /* of them in the list or heap */
	struct flow_state *flows;
	uint32_t *list; /* in turn: a ring of count entries, in the order of their turns */
	uint32_t first; /* of it */
	struct heap_entry *heap; /* paced: by next_ns, then by the order of the flows */
	uint32_t *places; /* in it, by flow; in deficit round robin the flow's deficit in bytes */
	bool in_turn; /* deficit round robin: the first of the list has had this turn's quantum */
	const struct sender_stage *stages;
	uint32_t stage_count, stage; /* the one that is being sent */
	uint32_t open_stages; /* stages with a lower number have begun */
	uint64_t opened_ns; /* when the latest of them did */
	struct background *background; /* sent beside the flows, each at its own rate */
	uint32_t background_count;
};

struct packet {
	uint32_t source, destination, psn, wire_bytes;
	uint32_t number; /* of the flow's transmissions so far: the PSN, as long as nothing is sent again */
	uint64_t ready_ns;
	uint8_t flags, copy; /* of its transport header */
	uint32_t spread; /* in place of the destination where entropy values are drawn */
};

/* flows: count of them, all of one source, in round-robin order, with ready_ns set. storage for count
 * entries each.
 */
void sender_init(struct sender *sender, enum discipline discipline, struct flow_state *flows, uint32_t count,
		 uint64_t byte_ns, uint32_t *list_storage, uint32_t *place_storage,
		 struct heap_entry *heap_storage);
/* When the next packet starts into the port, UINT64_MAX if none may be sent. */
uint64_t sender_next_ns(struct sender *sender);
/* Takes that packet, and returns its flow; NULL if it is one of a background flow. */
struct flow_state *sender_take(struct sender *sender, struct transport *transport, struct packet *packet);
/* flows: count of them, all of the sender's host, with next_ns set to when they begin. */
void sender_add_background(struct sender *sender, struct background *flows, uint32_t count);
/* stages: count of them, by number. Those below open may begin at once. What is left when all have been sent
 * goes in turn.
 */
void sender_set_stages(struct sender *sender, const struct sender_stage *stages, uint32_t count,
		       uint32_t open);
/* From now_ns on stages below open may begin. */
void sender_open_stages(struct sender *sender, uint32_t open, uint64_t now_ns);
/* They send no more. */
void sender_stop_background(struct sender *sender);
/* A flow may have got something to send, or a window, or another rate, at now_ns. */
void sender_update(struct sender *sender, struct flow_state *flow, uint64_t now_ns);

#endif
