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

#endif
