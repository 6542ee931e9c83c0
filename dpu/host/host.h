/* SPDX-License-Identifier: Apache-2.0 */
/* The host's half of DOCA PCC as a C library: loads the DPU's program and sends it messages. Python drives it
 * by ctypes (controller/nic/doca.py). One thread at a time a context.
 */
#ifndef INCASTFREE_PCC_HOST_H
#define INCASTFREE_PCC_HOST_H

#include <stddef.h>
#include <stdint.h>

struct pcc_host;

enum pcc_host_state {
	PCC_HOST_ACTIVE,
	PCC_HOST_STANDBY, /* another program is active on the device */
	PCC_HOST_DEACTIVATED, /* only to be destroyed */
	PCC_HOST_ERROR, /* likewise */
};

enum pcc_host_failure {
	PCC_HOST_OK,
	PCC_HOST_NO_DEVICE, /* none of that name, or without PCC */
	PCC_HOST_FAILED,
};

/* All return an enum pcc_host_failure, and fill `why`, of `room` bytes, with one line where it is not OK. */

/* Opens the device, loads the program and starts it, on so many of `threads` (execution units of the DPA) as
 * the device takes. On failure nothing is left. */
int pcc_host_open(const char *device, const uint32_t *threads, uint32_t thread_count,
		  struct pcc_host **opened, char *why, size_t room);
int pcc_host_state(struct pcc_host *host, uint32_t *state, char *why, size_t room);
/* One message, blocking. The reply's first reply_room bytes are copied. Fails unless the program is active.
 */
int pcc_host_send(struct pcc_host *host, const void *message, uint32_t bytes, void *reply,
		  uint32_t reply_room, uint32_t *reply_bytes, char *why, size_t room);
/* Stops the program if it runs, and frees all. What fails first is said, and the rest tried all the same. */
int pcc_host_close(struct pcc_host *host, char *why, size_t room);

#endif
