/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Earliest departure time (EDT) of a paced flow, in whole nanoseconds and without drift.
 *
 * A packet leaves when the flow has earned its bytes since the packet before it left: after its own time
 * on the wire divided by the flow's share of the line rate (Virtual Clock, L. Zhang, SIGCOMM 1990). With
 * the gap before a packet and not after it, a short last packet leaves when the last byte is due, so that
 * a flow that started in time ends in time. What the division leaves over is carried to the next packet:
 * n packets of a flow that does not idle take floor(n * exact gap), whatever n is.
 *
 * The engine includes this file too: it must foresee the order in which the flows of a host leave.
 */
#ifndef INCASTFREE_EDT_H
#define INCASTFREE_EDT_H

#include "rate_table.h"

struct edt_flow {
	__u64 departed_ns; /* departure of the latest packet; of one sent too early it lies ahead: the debt */
	__u32 remainder; /* of the last division, in units of ns / steps */
	__u32 packets;
};

/* Departure of a packet that is ready at now_ns and takes wire_ns at line rate. steps is the flow's rate,
 * 0 if it has none; wire_ns is below 2^31.
 */
static inline __u64 edt_depart(struct edt_flow *flow, __u64 now_ns, __u64 wire_ns, __u32 steps)
{
	__u64 scaled, gap_ns, earned_ns;
	int first = !flow->packets++;

	if (!steps)
		return now_ns;
	scaled = (wire_ns << RATE_STEP_BITS) + flow->remainder;
	gap_ns = scaled / steps;
	flow->remainder = (__u32)(scaled - gap_ns * steps);
	earned_ns = first ? now_ns : flow->departed_ns + gap_ns;
	flow->departed_ns = earned_ns > now_ns ? earned_ns : now_ns;
	return flow->departed_ns;
}

#endif
