/* SPDX-License-Identifier: Apache-2.0 */
/* What sets the pace of flows: the answers of congestion controls and of DPUs, and the schedule's own rates.
 */
#ifndef INCASTFREE_PACE_H
#define INCASTFREE_PACE_H

#include "engine.h"
#include "wire_time.h"

/* Between two packets of a flow of this host that has so many steps of the line rate. */
static inline uint64_t pace_gap_ns(const struct engine *engine, uint32_t host, uint32_t steps)
{
	const uint64_t *byte_ns = engine->byte_ns.buf;

	return (uint64_t)((double)wire_time_ns(engine->mtu_bytes, byte_ns[host]) * (double)RATE_ONE / steps);
}

/* Puts a control's answer in force. -1 if it was an exception. */
int pace_govern(struct engine *engine, struct flow_state *flow, double answer);
/* Tells a flow's DPU of an event at now_ns, and lets the flow have the rate that it answers with. Whether
 * that is another one. A timeout is none of the events that a DPU hears of.
 */
bool pace_inform(struct engine *engine, struct flow_state *flow, enum pcc_event_kind kind, uint64_t now_ns,
		 uint32_t bytes);
/* What the hosts have sent to their DPUs is there, of all that is due so long after the start. 0, or -1 with
 * an exception.
 */
int pace_deliver(struct engine *engine, uint64_t since_ns);
/* A new rate table: from now_ns on all flows have the schedule's own rates. A flow keeps its debt. With DPUs
 * each takes its own at its next event. 0, or -1 with an exception.
 */
int pace_put_in_force(struct engine *engine, uint64_t now_ns);

#endif
