/* SPDX-License-Identifier: Apache-2.0 */
/* REPS: entropy values that have proved good are used again (Bonato et al., Recycled Entropy Packet Spraying,
 * 2024; facts: uet-htsim).
 *
 * Per flow a ring of the values of the latest ACKs that were not marked. A packet takes the oldest one that
 * no packet has taken yet, else a random one. After a timeout the flow takes no random ones for a while: it
 * goes round the ring, taken or not, since a path that it has not heard from may be the one that fails. Then
 * it forgets them all.
 */
#ifndef INCASTFREE_REPS_H
#define INCASTFREE_REPS_H

#include <stdbool.h>
#include <stdint.h>

#define REPS_RING 8

struct reps {
	uint64_t thaw_ns; /* frozen until then; 0: not frozen */
	uint32_t draws; /* random values so far */
	uint8_t values[REPS_RING];
	uint8_t next; /* place of the next value to be stored */
	uint8_t known; /* places that have been written, from 0 on */
	uint8_t fresh; /* of them, the latest ones that no packet has taken */
	uint8_t turn; /* place of the next value to be taken while frozen */
};

/* An ACK of a packet with this value has come in, with or without a mark: a marked one says nothing good of
 * its path.
 */
void reps_hear(struct reps *reps, uint8_t value, bool marked);
/* A packet has timed out: until thaw_ns known values only. A flow that is frozen already stays so until the
 * time that was given first.
 */
void reps_freeze(struct reps *reps, uint64_t thaw_ns);
/* The value of the flow's next packet, which leaves at now_ns. seed: of the flow's random values. */
uint8_t reps_take(struct reps *reps, uint32_t seed, uint64_t now_ns);

#endif
