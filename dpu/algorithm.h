/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of a flow, event by event. */
#ifndef INCASTFREE_PCC_ALGORITHM_H
#define INCASTFREE_PCC_ALGORITHM_H

#include "state.h"

enum pcc_event_kind {
	PCC_TX, /* the flow has sent */
	PCC_CNP,
	PCC_NACK,
	PCC_OTHER,
};

struct pcc_event {
	uint32_t kind; /* enum pcc_event_kind */
	uint32_t function, qpn; /* of a TX event; BlueField-3 has no QP number on the others */
	uint32_t now_ns; /* wraps */
	uint32_t bytes; /* of a TX event: sent since the one before */
	uint32_t count; /* of a CNP or NACK event: how many it stands for */
};

/* Rate after the event, in (0, 1] of the line rate, in steps of 2^-20. */
uint32_t pcc_rate(const struct pcc_state *state, struct pcc_flow *flow, const struct pcc_event *event);

#endif
