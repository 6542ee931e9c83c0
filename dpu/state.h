/* SPDX-License-Identifier: Apache-2.0 */
/* What the DPU keeps: rates and bindings, in two halves each, and what it knows of a flow. No SDK type. */
#ifndef INCASTFREE_PCC_STATE_H
#define INCASTFREE_PCC_STATE_H

#include "message.h"

#define PCC_PLACES_BITS 12
#define PCC_PLACES      (1u << PCC_PLACES_BITS) /* of the hash table: twice the bindings */

_Static_assert(PCC_PLACES >= 2 * PCC_BINDINGS, "the hash table is never more than half full");

struct pcc_half {
	uint64_t generation;
	struct pcc_settings settings;
	uint16_t sharers[RATE_SLOTS]; /* QPs that share a slot's rate */
	struct pcc_binding place[PCC_PLACES]; /* open addressing; QPN 0: free */
};

struct pcc_state {
	struct rate_table rates; /* as the eBPF pacer's, in steps of 2^-20 */
	uint32_t active; /* half of the bindings that is in force */
	uint32_t accepted;
	uint32_t refused[PCC_STATUSES]; /* messages, by reason */
	struct pcc_half bindings[2];
};

/* One flow. On a DPU this is the context that the SDK keeps for it: twelve words, which begin as 0. */
struct pcc_flow {
	uint32_t qpn; /* as its latest TX event said, 0: none yet */
	uint16_t function;
	uint16_t slot_plus_1; /* 0: not bound */
	uint32_t bindings_generation; /* by which it was looked up, its low word */
	/* The reactive fallback, in 2^-20 of R. */
	uint32_t cut; /* what is missing of base */
	uint32_t marked; /* part of the latest bytes that came back marked */
	uint32_t risen_ns; /* up to when base has risen */
	uint32_t cut_ns; /* latest cut */
	uint32_t solid_bytes; /* marked, since it was last less than nearly all */
	uint32_t has_cut;
	uint32_t reserved[3];
};

_Static_assert(sizeof(struct pcc_flow) == 12 * sizeof(uint32_t), "the SDK keeps twelve words a flow");

static inline const struct pcc_half *pcc_bindings_in_force(const struct pcc_state *state)
{
	return &state->bindings[__atomic_load_n(&state->active, __ATOMIC_ACQUIRE) & 1];
}

/* Where to look for a QP first. Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4). */
static inline uint32_t pcc_place(uint32_t function, uint32_t qpn)
{
	return (qpn + function * 0x85ebca77u) * 0x9e3779b1u >> (32 - PCC_PLACES_BITS);
}

#endif
