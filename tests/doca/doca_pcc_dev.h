/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-in, see README.md: the device's side. Events are opaque there, so that their layout here is our own.
 */
#ifndef STANDIN_DOCA_PCC_DEV_H
#define STANDIN_DOCA_PCC_DEV_H

#include <stdint.h>

#define DOCA_PCC_DEV_MAX_RATE      (1u << 20)
#define DOCA_PCC_DEV_DEFAULT_RATE  (1u << 12)
#define DOCA_PCC_DEV_MAX_NUM_PORTS 4

typedef enum {
	DOCA_PCC_DEV_STATUS_OK,
	DOCA_PCC_DEV_STATUS_FAIL,
} doca_pcc_dev_error_t;

enum {
	DOCA_PCC_DEV_EVNT_NULL,
	DOCA_PCC_DEV_EVNT_FW,
	DOCA_PCC_DEV_EVNT_ROCE_CNP,
	DOCA_PCC_DEV_EVNT_ROCE_TX,
	DOCA_PCC_DEV_EVNT_ROCE_ACK,
	DOCA_PCC_DEV_EVNT_ROCE_NACK,
	DOCA_PCC_DEV_EVNT_RTT,
};

typedef struct {
	uint32_t data[12];
} doca_pcc_dev_algo_ctxt_t;

typedef struct {
	uint32_t ev_type : 8, ev_subtype : 8, port_num : 8, flags : 8;
} doca_pcc_dev_event_general_attr_t;

typedef struct {
	uint32_t sent_32bytes : 16, sent_pkts : 16;
} doca_pcc_dev_roce_tx_cntrs_t;

typedef struct {
	uint32_t num_coalesced : 16, reserved : 16;
} doca_pcc_dev_ack_nack_cnp_extra_t;

typedef struct {
	doca_pcc_dev_event_general_attr_t general;
	uint32_t timestamp, qpn;
	doca_pcc_dev_roce_tx_cntrs_t counters;
	doca_pcc_dev_ack_nack_cnp_extra_t extra;
} doca_pcc_dev_event_t;

typedef struct {
	uint32_t algo_slot : 4, overload : 1, reserved : 27;
} doca_pcc_dev_attr_t;

typedef struct {
	uint32_t rate, rtt_req;
} doca_pcc_dev_results_t;

/* The program's entry points. */
void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask);
void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *context, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attributes, doca_pcc_dev_results_t *results);
doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port, uint32_t slot, uint32_t first,
						       uint32_t count, const uint32_t *values,
						       uint32_t *parameters);
doca_pcc_dev_error_t doca_pcc_dev_user_mailbox_handle(void *request, uint32_t request_size,
						      uint32_t max_response_size, void *response,
						      uint32_t *response_size);

#endif
