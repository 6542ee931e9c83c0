// SPDX-License-Identifier: Apache-2.0
#include "reps.h"

#include <string.h>

#include "entropy.h"

void reps_hear(struct reps *reps, uint8_t value, bool marked)
{
	if (marked)
		return;
	reps->values[reps->next] = value & (ENTROPY_VALUES - 1);
	reps->next = (reps->next + 1) % REPS_RING;
	if (reps->known < REPS_RING)
		reps->known++;
	if (reps->fresh < REPS_RING)
		reps->fresh++; /* else the oldest one was overwritten */
}

void reps_freeze(struct reps *reps, uint64_t thaw_ns)
{
	if (!reps->thaw_ns)
		reps->thaw_ns = thaw_ns;
}

uint8_t reps_take(struct reps *reps, uint32_t seed, uint64_t now_ns)
{
	uint8_t value;

	if (reps->thaw_ns && now_ns >= reps->thaw_ns) {
		uint32_t draws = reps->draws;

		memset(reps, 0, sizeof(*reps));
		reps->draws = draws;
	}
	if (reps->thaw_ns && reps->known) {
		value = reps->values[reps->turn];
		reps->turn = (reps->turn + 1) % reps->known;
		return value;
	}
	if (reps->fresh) {
		value = reps->values[(reps->next + REPS_RING - reps->fresh) % REPS_RING];
		reps->fresh--;
		return value;
	}
	return mix32(seed + reps->draws++) & (ENTROPY_VALUES - 1);
}
