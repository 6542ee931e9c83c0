/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-in, see README.md. */
#ifndef STANDIN_DOCA_PCC_H
#define STANDIN_DOCA_PCC_H

#include <stdint.h>

#include "doca_dev.h"
#include "doca_error.h"

struct doca_pcc;
struct doca_pcc_app;

typedef enum {
	DOCA_PCC_PS_ACTIVE,
	DOCA_PCC_PS_STANDBY,
	DOCA_PCC_PS_DEACTIVATED,
	DOCA_PCC_PS_ERROR,
} doca_pcc_process_state_t;

doca_error_t doca_devinfo_get_is_pcc_supported(const struct doca_devinfo *info);
doca_error_t doca_pcc_create(struct doca_dev *device, struct doca_pcc **pcc);
doca_error_t doca_pcc_destroy(struct doca_pcc *pcc);
doca_error_t doca_pcc_get_min_num_threads(struct doca_pcc *pcc, uint32_t *count);
doca_error_t doca_pcc_get_max_num_threads(struct doca_pcc *pcc, uint32_t *count);
doca_error_t doca_pcc_set_app(struct doca_pcc *pcc, struct doca_pcc_app *app);
doca_error_t doca_pcc_set_thread_affinity(struct doca_pcc *pcc, uint32_t count, uint32_t *threads);
doca_error_t doca_pcc_set_mailbox(struct doca_pcc *pcc, uint32_t request_size, uint32_t response_size);
doca_error_t doca_pcc_start(struct doca_pcc *pcc);
doca_error_t doca_pcc_stop(struct doca_pcc *pcc);
doca_error_t doca_pcc_get_process_state(const struct doca_pcc *pcc, doca_pcc_process_state_t *state);
doca_error_t doca_pcc_mailbox_get_request_buffer(const struct doca_pcc *pcc, void **buffer);
doca_error_t doca_pcc_mailbox_get_response_buffer(const struct doca_pcc *pcc, void **buffer);
doca_error_t doca_pcc_mailbox_send(struct doca_pcc *pcc, uint32_t request_size, uint32_t *response_size,
				   uint32_t *callback_status);

#endif
