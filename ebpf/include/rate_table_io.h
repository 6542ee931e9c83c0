/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Whole rate tables, in user space: one writer, any number of readers, in memory that they share.
 *
 * The order of a writer's and a reader's accesses is that of a sequence lock (Boehm, "Can seqlocks get along
 * with programming language memory models?", MSPC 2012), so that it holds on every architecture. A packet's
 * program reads `active` and then one slot by an address that depends on it, which keeps its order
 * everywhere.
 */
#ifndef INCASTFREE_RATE_TABLE_IO_H
#define INCASTFREE_RATE_TABLE_IO_H

#include <string.h>

#include "rate_table.h"

/* Puts `count` rates in force at once; the slots after them get 0. */
static inline void rate_table_write(struct rate_table *table, const void *steps, __u32 count)
{
	__u32 active = __atomic_load_n(&table->active, __ATOMIC_RELAXED) & 1;
	__u64 generation = __atomic_load_n(&table->half[active].generation, __ATOMIC_RELAXED) + 1;
	struct rate_half *half = &table->half[1 - active];

	__atomic_store_n(&half->generation, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(half->steps, steps, count * sizeof(half->steps[0]));
	memset(half->steps + count, 0, (RATE_SLOTS - count) * sizeof(half->steps[0]));
	__atomic_store_n(&half->generation, generation, __ATOMIC_RELEASE);
	__atomic_store_n(&table->active, 1 - active, __ATOMIC_RELEASE);
}

/* One attempt to read the rates of all slots. 0, and what was read is of no use, if a writer overtook it. */
static inline int rate_table_read(const struct rate_table *table, __u32 *steps, __u64 *generation)
{
	__u32 active = __atomic_load_n(&table->active, __ATOMIC_ACQUIRE) & 1;
	const struct rate_half *half = &table->half[active];
	__u32 any = 0;

	*generation = __atomic_load_n(&half->generation, __ATOMIC_ACQUIRE);
	memcpy(steps, half->steps, sizeof(half->steps));
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(&half->generation, __ATOMIC_RELAXED) != *generation)
		return 0;
	if (*generation)
		return 1;
	/* Being written, or never written. */
	for (__u32 slot = 0; slot < RATE_SLOTS; slot++)
		any |= steps[slot];
	return !any;
}

#endif
