/* SPDX-License-Identifier: Apache-2.0 */
/* Background flows: a constant load beside the demand. They know no window and no answer. */
#ifndef INCASTFREE_BACKGROUND_H
#define INCASTFREE_BACKGROUND_H

#include <stdint.h>

#include "edt.h"

struct background_flow { /* as Python lays them out: see testbed/engine/__init__.py */
	uint32_t source, destination;
	uint64_t ready_ns; /* first departure, after the common start */
	uint32_t packets;
	uint32_t last_bytes; /* wire bytes of the last packet; the others have the MTU */
	uint32_t steps; /* of the line rate */
	uint32_t first_psn; /* no two flows have a PSN in common */
};

struct background {
	struct background_flow given;
	struct edt_flow clock;
	uint64_t next_ns; /* when the next packet is due at the NIC */
	uint32_t next;
	uint32_t number; /* of all background flows */
	uint32_t mtu_bytes;
};

/* In the place of a destination: no host has so high a number. */
#define BACKGROUND_SPREAD 0x8000u

static inline uint32_t background_bytes(const struct background *flow)
{
	return flow->next + 1 == flow->given.packets ? flow->given.last_bytes : flow->mtu_bytes;
}

#endif
