/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts' DPUs, with nic = doca-model: the DPU's own code (dpu/) says each flow's rate.
 *
 * What is the DPU's: the mailbox's messages and how they are put in force, how a flow finds its rate, the
 * fallback. What is not: the events (a TX event for each packet, where hardware joins several; a CNP for each
 * marked ACK; a NACK for each trimmed packet), the shaper that keeps the rate (edt.h), and when a message
 * comes.
 */
#ifndef INCASTFREE_DPUS_H
#define INCASTFREE_DPUS_H

#include <stddef.h>
#include <stdint.h>

#include "algorithm.h"
#include "mailbox.h"

/* One message, as testbed/dpu_model.py lays it out; its bytes follow, filled up to a multiple of 8. */
struct dpu_send {
	uint64_t at_ns; /* kernel time after the start; 0: before it */
	uint32_t host;
	uint32_t bytes;
};

struct dpus {
	struct pcc_state *states; /* one a host; NULL with any other NIC */
	struct pcc_flow *flows;
	uint32_t host_count;
	const uint8_t *next, *end; /* of what has not come yet, by time */
	uint64_t messages, cnps, nacks, unknown;
};

/* Steps of 2^-32 from those of a DPU: the whole line rate is 1 less. */
static inline uint32_t dpu_steps(uint32_t steps)
{
	return steps < PCC_RATE_ONE ? steps << (RATE_STEP_BITS - PCC_RATE_BITS) : UINT32_MAX;
}

/* The QP to host j has this number plus j. */
#define DPU_FIRST_QPN 0x100

/* What a shaper has before the flow's first event: DOCA_PCC_DEV_DEFAULT_RATE. */
#define DPU_FIRST_STEPS (1u << (RATE_STEP_BITS - 8))

/* sends: an array of struct dpu_send with their messages, in the order of at_ns; none: no DPUs. 0, or -1. */
int dpus_init(struct dpus *dpus, uint32_t host_count, size_t flow_count, const void *sends, size_t bytes);
void dpus_free(struct dpus *dpus);
/* Hands over what is due up to since_ns. PCC_OK, or the status of the first that was refused, and by whom. */
uint32_t dpus_deliver(struct dpus *dpus, uint64_t since_ns, uint32_t *host);
/* The flow's rate after the event, in steps of 2^-32. */
uint32_t dpus_event(struct dpus *dpus, uint32_t host, size_t flow, const struct pcc_event *event);

#endif
