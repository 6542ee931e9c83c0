/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The rate table of one NIC: the one layout that the eBPF pacer, the testbed's engine and a DPU share.
 *
 * A rate is a number of steps of the NIC's own line rate: RATE_ONE steps would be the whole of it. Slot j
 * is the flow to peer j; 0 steps means that no rate was set, and the flow is not paced.
 *
 * The table has two halves. A writer fills the one that is not active and flips `active` last, so that a
 * packet reads either the old rates or the new ones. Each half carries a generation, 0 while it is being
 * written: a reader of a whole half reads it before and after, and reads again unless both are the same
 * and not 0.
 */
#ifndef INCASTFREE_RATE_TABLE_H
#define INCASTFREE_RATE_TABLE_H

#include <linux/types.h>

#define RATE_SLOTS     1024
#define RATE_STEP_BITS 32
#define RATE_ONE       (1ULL << RATE_STEP_BITS)

struct rate_half {
	__u64 generation;
	__u32 steps[RATE_SLOTS];
};

struct rate_table {
	__u32 active; /* 0 or 1: the half that is in force */
	__u32 reserved;
	struct rate_half half[2];
};

static inline __u32 rate_table_steps(const struct rate_table *table, __u32 slot)
{
	return table->half[table->active & 1].steps[slot & (RATE_SLOTS - 1)];
}

#endif
