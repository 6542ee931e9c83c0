/* SPDX-License-Identifier: Apache-2.0 */
/* Mailbox messages: checked whole, then put in force at once, or refused and counted. */
#ifndef INCASTFREE_PCC_MAILBOX_H
#define INCASTFREE_PCC_MAILBOX_H

#include "state.h"

/* Acts on a request of so many bytes. `reply` has room for reply_room bytes; how many it got is returned, 0
 * if there is not room for its head. What became of the request is in *status, an enum pcc_status, and in the
 * reply. One caller at a time; flows may read the state meanwhile.
 */
uint32_t pcc_mailbox(struct pcc_state *state, const void *request, uint32_t request_bytes, void *reply,
		     uint32_t reply_room, uint32_t *status);

/* Whether settings can be put in force. */
int pcc_settings_valid(const struct pcc_settings *settings);

/* The settings as the SDK's algorithm parameters, in their order in struct pcc_settings. */
#define PCC_PARAMETERS 5

/* Changes `count` parameters from `first` on, all or none: PCC_OK, PCC_BAD_COUNT, or PCC_BAD_SETTINGS, also
 * where there are no settings yet.
 */
uint32_t pcc_set_parameters(struct pcc_state *state, uint32_t first, uint32_t count, const uint32_t *values);

#endif
