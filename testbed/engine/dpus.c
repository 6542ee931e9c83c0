// SPDX-License-Identifier: Apache-2.0
#include "dpus.h"

#include <stdlib.h>
#include <string.h>

static size_t whole_words(size_t bytes)
{
	return (bytes + 7) & ~(size_t)7;
}

static int is_sound(const uint8_t *at, const uint8_t *end, uint32_t host_count)
{
	uint64_t before_ns = 0;

	while (at < end) {
		struct dpu_send send;

		if ((size_t)(end - at) < sizeof(send))
			return 0;
		memcpy(&send, at, sizeof(send));
		at += sizeof(send);
		if (send.host >= host_count || send.at_ns < before_ns ||
		    whole_words(send.bytes) > (size_t)(end - at))
			return 0;
		at += whole_words(send.bytes);
		before_ns = send.at_ns;
	}
	return 1;
}

int dpus_init(struct dpus *dpus, uint32_t host_count, size_t flow_count, const void *sends, size_t bytes)
{
	*dpus = (struct dpus){.host_count = host_count, .next = sends, .end = (const uint8_t *)sends + bytes};
	if (!bytes)
		return 0;
	dpus->states = calloc(host_count, sizeof(*dpus->states));
	dpus->flows = calloc(flow_count + 1, sizeof(*dpus->flows));
	return dpus->states && dpus->flows && is_sound(dpus->next, dpus->end, host_count) ? 0 : -1;
}

void dpus_free(struct dpus *dpus)
{
	free(dpus->states);
	free(dpus->flows);
}

uint32_t dpus_deliver(struct dpus *dpus, uint64_t since_ns, uint32_t *host)
{
	while (dpus->next < dpus->end) {
		struct dpu_send send;
		uint32_t status;

		memcpy(&send, dpus->next, sizeof(send));
		if (send.at_ns > since_ns)
			break;
		dpus->next += sizeof(send);
		pcc_mailbox(&dpus->states[send.host], dpus->next, send.bytes, NULL, 0, &status);
		if (status != PCC_OK) {
			*host = send.host;
			return status;
		}
		dpus->next += whole_words(send.bytes);
		dpus->messages++;
	}
	return PCC_OK;
}

uint32_t dpus_event(struct dpus *dpus, uint32_t host, size_t flow, const struct pcc_event *event)
{
	const struct pcc_state *state = &dpus->states[host];
	struct pcc_flow *own = &dpus->flows[flow];
	uint32_t steps = pcc_rate(state, own, event);

	dpus->cnps += event->kind == PCC_CNP;
	dpus->nacks += event->kind == PCC_NACK;
	dpus->unknown += event->kind == PCC_TX &&
			 (!own->slot_plus_1 || !rate_table_steps(&state->rates, own->slot_plus_1 - 1u));
	return dpu_steps(steps);
}
