/* SPDX-License-Identifier: Apache-2.0 */
/* What senders did, of a run that is traced: every packet of the demand that they sent, and every loss that
 * they found. The fabric's records say where a packet was; these say why it was not sent before.
 */
#ifndef INCASTFREE_EVENTS_H
#define INCASTFREE_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#define EVENTS_HELD 1024

enum event_kind {
	EVENT_SENT,
	/* A packet was found to be lost, by: */
	EVENT_NACK,
	EVENT_SACK,
	EVENT_TIMEOUT,
	EVENT_PROBE, /* it is sent again after a silence, lost or not */
};

struct event { /* as testbed/engine/__init__.py lays it out */
	uint64_t time_ns;
	uint64_t since_ns; /* sent: its flow may send, by window and start, since then */
	uint32_t psn;
	uint16_t source, destination;
	uint8_t kind, copy;
	uint8_t reserved[6];
};

_Static_assert(sizeof(struct event) == 32, "as Python lays it out");

struct events {
	int fd; /* -1: nothing is kept */
	int error; /* errno of a write that failed; no more are tried */
	size_t count;
	struct event held[EVENTS_HELD];
};

void events_note(struct events *events, struct event event);
/* Writes what is held. 0, or -1 with errno, also where an earlier write had failed. */
int events_flush(struct events *events);

#endif
