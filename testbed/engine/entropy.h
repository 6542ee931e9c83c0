/* SPDX-License-Identifier: Apache-2.0 */
/* Entropy values: how a sender spreads the packets of a flow over the paths. */
#ifndef INCASTFREE_ENTROPY_H
#define INCASTFREE_ENTROPY_H

#include <stdint.h>

#include "mix.h"

#define ENTROPY_BITS   6
#define ENTROPY_VALUES (1u << ENTROPY_BITS)

enum balancing {
	OBLIVIOUS_SPRAYING, /* OPS: each value once a cycle, in an order that changes with every cycle */
	SINGLE_PATH, /* ECMP: one value a flow */
	RECYCLED_VALUES, /* REPS: a value that has proved good, or a random one: see reps.h */
	ADAPTIVE_ROUTING, /* AR: switches choose; values, as with OPS, spread control */
};

/* Of what a flow draws. */
static inline uint32_t flow_seed(uint32_t seed, uint32_t source, uint32_t destination)
{
	return mix32(seed + (source << 16 | destination));
}

/* Of a packet under all but RECYCLED_VALUES. The order of cycle c is e(k) = a k + b modulo the number of
 * values, which is a permutation since a is odd; a and b are drawn from a hash of (seed, flow, cycle).
 */
static inline uint16_t entropy_value(enum balancing balancing, uint32_t seed, uint32_t source,
				     uint32_t destination, uint32_t psn)
{
	uint32_t cycle = balancing == SINGLE_PATH ? 0 : psn >> ENTROPY_BITS;
	uint32_t drawn = mix32(flow_seed(seed, source, destination) + cycle);
	uint32_t turn = balancing == SINGLE_PATH ? 0 : psn & (ENTROPY_VALUES - 1);

	return (uint16_t)(((drawn | 1) * turn + (drawn >> 16)) & (ENTROPY_VALUES - 1));
}

#endif
