// SPDX-License-Identifier: Apache-2.0
/* The program on the DPA: turns the SDK's events and requests into those of ../algorithm.c and ../mailbox.c,
 * which do the rest. Names and types are those of the public DOCA PCC device interface (DOCA 3.x).
 *
 * Nobody has run it on hardware. tests/unit/test_doca_device.py compiles it against declarations of our own.
 */
#include <doca_pcc_dev.h>
#include <doca_pcc_dev_algo_access.h>
#include <doca_pcc_dev_event.h>

#include "algorithm.h"
#include "mailbox.h"

#define ALGORITHM    0
#define ALGORITHM_ID 0x1f00
#define SLOT         0

static struct pcc_state state;

static const volatile char description[] = "incastfree: rates by demand";
static const volatile char parameter_descriptions[PCC_PARAMETERS][32] = {
	"rate of unknown QPs", "RTT without queues [ns]",       "bytes of the line in an RTT",
	"bytes of a CNP",      "1: give way to CNPs and NACKs",
};

_Static_assert(sizeof(((doca_pcc_dev_algo_ctxt_t *)0)->data) >= sizeof(struct pcc_flow),
	       "a flow's context holds what we keep of it");
_Static_assert(DOCA_PCC_DEV_MAX_RATE == PCC_RATE_ONE, "the steps of a rate");

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	static const uint32_t defaults[PCC_PARAMETERS] = {DOCA_PCC_DEV_DEFAULT_RATE, 8000, 800000, 4096, 0};
	static const uint32_t most[PCC_PARAMETERS] = {DOCA_PCC_DEV_MAX_RATE, UINT32_MAX, UINT32_MAX,
						      UINT32_MAX, PCC_FALLBACK};
	struct doca_pcc_dev_algo_meta_data about = {
		.algo_id = ALGORITHM_ID,
		.algo_major_version = 0,
		.algo_minor_version = PCC_VERSION,
		.algo_desc_size = sizeof(description),
		.algo_desc_addr = (uint64_t)(uintptr_t)description,
	};

	__builtin_memset(&state, 0, sizeof(state)); /* the host counts its messages from 1 after each load */
	doca_pcc_dev_algo_init_metadata(ALGORITHM, &about, PCC_PARAMETERS, 0);
	for (uint32_t i = 0; i < PCC_PARAMETERS; i++)
		doca_pcc_dev_algo_init_param(ALGORITHM, i, defaults[i], most[i], defaults[i] ? 1 : 0, 1,
					     sizeof(parameter_descriptions[i]),
					     (uint64_t)(uintptr_t)parameter_descriptions[i]);
	for (uint32_t port = 0; port < DOCA_PCC_DEV_MAX_NUM_PORTS; port++)
		doca_pcc_dev_init_algo_slot(port, SLOT, ALGORITHM, 1);
	/* An ACK tells the algorithm nothing. */
	*disable_event_bitmask = 1u << DOCA_PCC_DEV_EVNT_ROCE_ACK;
}

/* All flows, whatever slot their event names: one that was not negotiated names the built-in algorithm's
 * (15), which is what nearly all RoCE traffic does that does not connect through rdma_cm.
 *
 * The public interface says at which port an event is and not of which function of it: the port stands for
 * the function. Of two functions on one port that have a QP of the same number, one cannot be told from the
 * other.
 */
void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results)
{
	doca_pcc_dev_event_general_attr_t general = doca_pcc_dev_get_ev_attr(event);
	struct pcc_event heard = {
		.kind = PCC_OTHER,
		.function = general.port_num,
		.now_ns = doca_pcc_dev_get_timestamp(event),
	};

	(void)attr;
	switch (general.ev_type) {
	case DOCA_PCC_DEV_EVNT_ROCE_TX:
		heard.kind = PCC_TX;
		heard.qpn = doca_pcc_dev_get_flow_qpn(event);
		heard.bytes = (uint32_t)doca_pcc_dev_get_roce_tx_cntrs(event).sent_32bytes * 32;
		break;
	case DOCA_PCC_DEV_EVNT_ROCE_CNP:
	case DOCA_PCC_DEV_EVNT_ROCE_NACK:
		heard.kind = general.ev_type == DOCA_PCC_DEV_EVNT_ROCE_CNP ? PCC_CNP : PCC_NACK;
		/* Events that were joined to this one, which is one more or counted: it is at least one. */
		heard.count = doca_pcc_dev_get_ack_nack_cnp_extra(event).num_coalesced;
		if (!heard.count)
			heard.count = 1;
		break;
	default:
		break;
	}
	results->rate = pcc_rate(&state, (struct pcc_flow *)algo_ctxt->data, &heard);
	results->rtt_req = 0;
}

/* `params` is the SDK's own copy of what is set here. */
doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot,
						       uint32_t param_id_base, uint32_t param_num,
						       const uint32_t *new_param_values, uint32_t *params)
{
	(void)port_num;
	if (algo_slot != SLOT ||
	    pcc_set_parameters(&state, param_id_base, param_num, new_param_values) != PCC_OK)
		return DOCA_PCC_DEV_STATUS_FAIL;
	for (uint32_t i = 0; i < param_num; i++)
		params[param_id_base + i] = new_param_values[i];
	return DOCA_PCC_DEV_STATUS_OK;
}

/* A refusal is in the reply: whether a host gets a reply after STATUS_FAIL is not documented. */
doca_pcc_dev_error_t doca_pcc_dev_user_mailbox_handle(void *request, uint32_t request_size,
						      uint32_t max_response_size, void *response,
						      uint32_t *response_size)
{
	uint32_t status;

	*response_size = pcc_mailbox(&state, request, request_size, response, max_response_size, &status);
	return *response_size ? DOCA_PCC_DEV_STATUS_OK : DOCA_PCC_DEV_STATUS_FAIL;
}
