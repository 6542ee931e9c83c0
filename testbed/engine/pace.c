// SPDX-License-Identifier: Apache-2.0
#include "pace.h"

static void pace_set(const struct engine *engine, struct flow_state *flow, uint32_t steps)
{
	flow->steps = steps;
	flow->gap_ns = pace_gap_ns(engine, flow->source, steps);
}

int pace_govern(struct engine *engine, struct flow_state *flow, double answer)
{
	if (answer == -1)
		return -1;
	if (engine->controls.kind == CONTROL_WINDOW) {
		/* Below one packet nothing could ever be sent. */
		flow->window_bytes = answer < engine->mtu_bytes ? engine->mtu_bytes
				     : answer > 1e15            ? (int64_t)1e15
								: (int64_t)answer;
	} else {
		const uint64_t *byte_ns = engine->byte_ns.buf;
		double line_bps = 8e9 * engine->dilation * 4294967296.0 / (double)byte_ns[flow->source];
		double share = answer / line_bps * (double)RATE_ONE;
		uint32_t ceiling = flow->ceiling_steps ? flow->ceiling_steps : UINT32_MAX;

		pace_set(engine, flow, share < 1 ? 1 : share >= (double)ceiling ? ceiling : (uint32_t)share);
	}
	return 0;
}

bool pace_inform(struct engine *engine, struct flow_state *flow, enum pcc_event_kind kind, uint64_t now_ns,
		 uint32_t bytes)
{
	uint64_t fabric_ns = (uint64_t)((double)(now_ns - engine->epoch_ns) / engine->dilation);
	uint32_t steps = dpus_event(&engine->dpus, flow->source, engine_index_of(engine, flow),
				    &(struct pcc_event){
					    .kind = kind,
					    .qpn = kind == PCC_TX ? DPU_FIRST_QPN + flow->destination : 0,
					    .now_ns = (uint32_t)fabric_ns,
					    .bytes = bytes,
					    .count = 1,
				    });

	if (steps == flow->steps)
		return false;
	pace_set(engine, flow, steps);
	return true;
}

int pace_deliver(struct engine *engine, uint64_t since_ns)
{
	uint32_t host, status = dpus_deliver(&engine->dpus, since_ns, &host);

	if (status == PCC_OK)
		return 0;
	PyErr_Format(PyExc_RuntimeError, "the DPU of host %u refused a message: status %u", host, status);
	return -1;
}

int pace_put_in_force(struct engine *engine, uint64_t now_ns)
{
	const struct flow *flows = engine->flows.buf;

	if (engine->dpus.states)
		return pace_deliver(engine, engine->rates_ns);
	for (uint32_t i = 0; i < engine->flow_count; i++) {
		struct flow_state *flow = &engine->flow_storage[i];

		flow->steps = flows[i].steps;
		if (flow->steps)
			flow->gap_ns = pace_gap_ns(engine, flow->source, flow->steps);
		sender_update(&engine->senders[flow->source], flow, now_ns);
	}
	return 0;
}
