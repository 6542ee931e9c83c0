// SPDX-License-Identifier: Apache-2.0
/* A bound flow has the rate of its slot, R, or its part of it; any other a bounded one. With PCC_FALLBACK
 * congestion lowers it:
 *
 *     rate = R * base / (1 + p)
 *
 * The paper asks for such a fallback (section 5) and gives no law; this is that of
 * testbed/engine/cca/fallback.py, which says why it is stable, for what a DPU hears: not which bytes came
 * back unmarked, but which were sent and how many CNPs and NACKs there were. p is the part of the bytes sent
 * in a round trip that CNPs stand for. A NACK, or nothing but CNPs for long, halves base, at most once every
 * two round trips; base rises again by 1/32 a round trip. The rate is never above R, and back at R two or
 * three round trips after the last CNP.
 */
#include "algorithm.h"

#define RISE_RTTS     32 /* from nothing to R */
#define CALM_RTTS     2
#define SOLID_RTTS    4
#define SOLID_PACKETS 32
#define NEARLY_ALL    (PCC_RATE_ONE - PCC_RATE_ONE / 16)
#define LEAST_SHARE   (PCC_RATE_ONE / 64)
#define MOST_WEIGHT   (PCC_RATE_ONE / 2)

/* DOCA_PCC_DEV_DEFAULT_RATE: what a flow has before the host has said anything. */
#define DEFAULT_STEPS (PCC_RATE_ONE >> 8)

static uint32_t product(uint32_t a, uint32_t b)
{
	return (uint32_t)((uint64_t)a * b >> PCC_RATE_BITS);
}

/* Slot of a QP plus 1, 0 if it is not bound. */
static uint16_t find(const struct pcc_half *half, uint32_t function, uint32_t qpn)
{
	uint32_t at = pcc_place(function, qpn);

	while (half->place[at].qpn) {
		if (half->place[at].qpn == qpn && half->place[at].function == function)
			return (uint16_t)(half->place[at].slot + 1);
		at = (at + 1) & (PCC_PLACES - 1);
	}
	return 0;
}

static void bind(const struct pcc_half *half, struct pcc_flow *flow, const struct pcc_event *event)
{
	if (event->kind == PCC_TX && event->qpn &&
	    (event->qpn != flow->qpn || event->function != flow->function)) {
		/* Another QP has the context now, and owes nothing for the one before. */
		*flow = (struct pcc_flow){.qpn = event->qpn, .function = (uint16_t)event->function};
	} else if (!flow->qpn || flow->bindings_generation == (uint32_t)half->generation) {
		return;
	}
	flow->bindings_generation = (uint32_t)half->generation;
	flow->slot_plus_1 = find(half, flow->function, flow->qpn);
}

/* A QP's part of the rate of its slot, in equal parts whether the others send or not; 0 without a rate. */
static uint32_t own_steps(const struct pcc_state *state, const struct pcc_half *half, uint32_t slot)
{
	uint32_t steps = rate_table_steps(&state->rates, slot), sharers = half->sharers[slot];

	return steps && sharers > 1 ? (steps > sharers ? steps / sharers : 1) : steps;
}

/* ---- reactive fallback ---- */

static uint32_t share(const struct pcc_flow *flow)
{
	uint64_t base = PCC_RATE_ONE - flow->cut;
	uint32_t part = (uint32_t)((base << PCC_RATE_BITS) / (PCC_RATE_ONE + flow->marked));

	return part > LEAST_SHARE ? part : LEAST_SHARE;
}

/* Bytes that the flow sends in a round trip, a packet at least. */
static uint32_t window(const struct pcc_settings *settings, const struct pcc_flow *flow, uint32_t steps)
{
	uint32_t bytes = product(product(settings->bdp_bytes, steps), share(flow));

	return bytes > settings->cnp_bytes ? bytes : settings->cnp_bytes;
}

/* What so many bytes weigh in the average over a round trip. */
static uint32_t weight(uint64_t bytes, uint32_t window_bytes)
{
	uint64_t part = (bytes << PCC_RATE_BITS) / window_bytes;

	return part < MOST_WEIGHT ? (uint32_t)part : MOST_WEIGHT;
}

static void rise(const struct pcc_settings *settings, struct pcc_flow *flow, uint32_t now_ns)
{
	uint64_t elapsed_ns = (uint32_t)(now_ns - flow->risen_ns);
	uint64_t risen;

	if (!flow->cut) {
		flow->risen_ns = now_ns;
		return;
	}
	risen = (elapsed_ns << PCC_RATE_BITS) / ((uint64_t)RISE_RTTS * settings->rtt_ns);
	if (!risen)
		return; /* and the time counts on */
	flow->cut = risen < flow->cut ? flow->cut - (uint32_t)risen : 0;
	flow->risen_ns = now_ns;
}

static void halve(const struct pcc_settings *settings, struct pcc_flow *flow, uint32_t now_ns)
{
	flow->solid_bytes = 0;
	if (flow->has_cut &&
	    (uint64_t)(uint32_t)(now_ns - flow->cut_ns) < (uint64_t)CALM_RTTS * settings->rtt_ns)
		return;
	rise(settings, flow, now_ns);
	flow->cut += (PCC_RATE_ONE - flow->cut) / 2;
	if (flow->cut > PCC_RATE_ONE - LEAST_SHARE)
		flow->cut = PCC_RATE_ONE - LEAST_SHARE;
	flow->cut_ns = flow->risen_ns = now_ns;
	flow->has_cut = 1;
}

static void hear_marks(const struct pcc_settings *settings, struct pcc_flow *flow, uint32_t steps,
		       const struct pcc_event *event)
{
	uint64_t bytes = (uint64_t)event->count * settings->cnp_bytes;
	uint32_t window_bytes = window(settings, flow, steps);
	uint64_t solid_bytes = (uint64_t)SOLID_RTTS * window_bytes;

	if (solid_bytes < (uint64_t)SOLID_PACKETS * settings->cnp_bytes)
		solid_bytes = (uint64_t)SOLID_PACKETS * settings->cnp_bytes;
	flow->marked += weight(bytes, window_bytes);
	if (flow->marked > PCC_RATE_ONE)
		flow->marked = PCC_RATE_ONE;
	if (flow->marked < NEARLY_ALL)
		flow->solid_bytes = 0;
	else
		flow->solid_bytes += bytes < UINT32_MAX - flow->solid_bytes ? (uint32_t)bytes : 0;
	if (event->kind == PCC_NACK || flow->solid_bytes >= solid_bytes)
		halve(settings, flow, event->now_ns);
}

uint32_t pcc_rate(const struct pcc_state *state, struct pcc_flow *flow, const struct pcc_event *event)
{
	const struct pcc_half *half = pcc_bindings_in_force(state);
	const struct pcc_settings *settings = &half->settings;
	uint32_t steps = 0;

	bind(half, flow, event);
	if (flow->slot_plus_1)
		steps = own_steps(state, half, flow->slot_plus_1 - 1u);
	if (!steps)
		steps = half->generation ? settings->unknown_steps : DEFAULT_STEPS;
	if (!(settings->flags & PCC_FALLBACK))
		return steps;

	rise(settings, flow, event->now_ns);
	if (event->kind == PCC_TX)
		flow->marked -= product(flow->marked, weight(event->bytes, window(settings, flow, steps)));
	else if (event->kind == PCC_CNP || event->kind == PCC_NACK)
		hear_marks(settings, flow, steps, event);
	steps = product(steps, share(flow));
	return steps ? steps : 1;
}
