// SPDX-License-Identifier: Apache-2.0
/* Order of calls (DOCA 3.x, public guide): create, set_app, set_thread_affinity and set_mailbox before start;
 * the mailbox's buffers and sends after it; a context that is deactivated or in error is destroyed, not
 * stopped. Nobody has run it on hardware; tests/unit/test_doca_host.py runs it on a stand-in.
 */
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <doca_dev.h>
#include <doca_error.h>
#include <doca_pcc.h>

#include "message.h"

/* The DPU's program, which dpacc puts into an archive under this name. */
extern struct doca_pcc_app *incastfree_pcc_app;

struct pcc_host {
	struct doca_dev *device;
	struct doca_pcc *pcc;
	int started;
};

static int fail(char *why, size_t room, const char *what, doca_error_t result)
{
	snprintf(why, room, "%s: %s", what, doca_error_get_descr(result));
	return PCC_HOST_FAILED;
}

static int open_device(struct pcc_host *host, const char *name, char *why, size_t room)
{
	char found[DOCA_DEVINFO_IBDEV_NAME_SIZE] = "";
	struct doca_devinfo **list;
	uint32_t count;
	doca_error_t result = doca_devinfo_create_list(&list, &count);

	if (result != DOCA_SUCCESS)
		return fail(why, room, "DOCA lists no devices", result);
	snprintf(why, room, "there is no DOCA device %s", name);
	for (uint32_t i = 0; i < count && !host->device; i++) {
		if (doca_devinfo_get_ibdev_name(list[i], found, sizeof(found)) != DOCA_SUCCESS ||
		    strncmp(found, name, sizeof(found)))
			continue;
		result = doca_devinfo_get_is_pcc_supported(list[i]);
		if (result == DOCA_SUCCESS)
			result = doca_dev_open(list[i], &host->device);
		if (result != DOCA_SUCCESS) {
			fail(why, room, "this device runs no program for congestion control", result);
			break;
		}
	}
	doca_devinfo_destroy_list(list);
	return host->device ? PCC_HOST_OK : PCC_HOST_NO_DEVICE;
}

static int set_up(struct pcc_host *host, const uint32_t *threads, uint32_t thread_count, char *why,
		  size_t room)
{
	uint32_t fewest, most, *own = NULL;
	const char *step = "create";
	doca_error_t result = doca_pcc_create(host->device, &host->pcc);

	if (result == DOCA_SUCCESS) {
		step = "get_min_num_threads";
		result = doca_pcc_get_min_num_threads(host->pcc, &fewest);
	}
	if (result == DOCA_SUCCESS) {
		step = "get_max_num_threads";
		result = doca_pcc_get_max_num_threads(host->pcc, &most);
	}
	if (result == DOCA_SUCCESS) {
		if (thread_count < fewest) {
			snprintf(why, room, "%u threads of the DPA are too few: this device needs %u",
				 thread_count, fewest);
			return PCC_HOST_FAILED;
		}
		if (thread_count > most)
			thread_count = most;
		own = malloc(thread_count * sizeof(*own));
		if (!own) {
			snprintf(why, room, "out of memory");
			return PCC_HOST_FAILED;
		}
		memcpy(own, threads, thread_count * sizeof(*own));
		step = "set_app";
		result = doca_pcc_set_app(host->pcc, incastfree_pcc_app);
	}
	if (result == DOCA_SUCCESS) {
		step = "set_thread_affinity";
		result = doca_pcc_set_thread_affinity(host->pcc, thread_count, own);
	}
	if (result == DOCA_SUCCESS) {
		step = "set_mailbox";
		result = doca_pcc_set_mailbox(host->pcc, PCC_REQUEST_BYTES, PCC_REPLY_BYTES);
	}
	if (result == DOCA_SUCCESS) {
		step = "start";
		result = doca_pcc_start(host->pcc);
		host->started = result == DOCA_SUCCESS;
	}
	free(own);
	if (result == DOCA_SUCCESS)
		return PCC_HOST_OK;
	snprintf(why, room, "doca_pcc_%s failed: %s", step, doca_error_get_descr(result));
	return PCC_HOST_FAILED;
}

int pcc_host_open(const char *device, const uint32_t *threads, uint32_t thread_count,
		  struct pcc_host **opened, char *why, size_t room)
{
	struct pcc_host *host = calloc(1, sizeof(*host));
	char ignored[256];
	int failure;

	*opened = NULL;
	if (!host) {
		snprintf(why, room, "out of memory");
		return PCC_HOST_FAILED;
	}
	failure = open_device(host, device, why, room);
	if (failure == PCC_HOST_OK)
		failure = set_up(host, threads, thread_count, why, room);
	if (failure == PCC_HOST_OK)
		*opened = host;
	else
		pcc_host_close(host, ignored, sizeof(ignored));
	return failure;
}

int pcc_host_state(struct pcc_host *host, uint32_t *state, char *why, size_t room)
{
	doca_pcc_process_state_t own;
	doca_error_t result = doca_pcc_get_process_state(host->pcc, &own);

	if (result != DOCA_SUCCESS)
		return fail(why, room, "doca_pcc_get_process_state failed", result);
	*state = own == DOCA_PCC_PS_ACTIVE        ? PCC_HOST_ACTIVE
		 : own == DOCA_PCC_PS_STANDBY     ? PCC_HOST_STANDBY
		 : own == DOCA_PCC_PS_DEACTIVATED ? PCC_HOST_DEACTIVATED
						  : PCC_HOST_ERROR;
	return PCC_HOST_OK;
}

int pcc_host_send(struct pcc_host *host, const void *message, uint32_t bytes, void *reply,
		  uint32_t reply_room, uint32_t *reply_bytes, char *why, size_t room)
{
	static const char *const states[] = {"active", "in standby", "deactivated", "in error"};
	uint32_t state, device_status = 0;
	void *request, *response;
	doca_error_t result;
	int failure = pcc_host_state(host, &state, why, room);

	*reply_bytes = 0;
	if (failure != PCC_HOST_OK)
		return failure;
	if (state != PCC_HOST_ACTIVE) {
		snprintf(why, room, "the DPU's program is %s", states[state]);
		return PCC_HOST_FAILED;
	}
	if (bytes > PCC_REQUEST_BYTES) {
		snprintf(why, room, "a message of %u bytes is larger than the mailbox", bytes);
		return PCC_HOST_FAILED;
	}
	result = doca_pcc_mailbox_get_request_buffer(host->pcc, &request);
	if (result != DOCA_SUCCESS)
		return fail(why, room, "doca_pcc_mailbox_get_request_buffer failed", result);
	memcpy(request, message, bytes);
	result = doca_pcc_mailbox_send(host->pcc, bytes, reply_bytes, &device_status);
	if (result != DOCA_SUCCESS)
		return fail(why, room, "doca_pcc_mailbox_send failed", result);
	if (device_status) {
		snprintf(why, room, "the DPU's program answered with status %u", device_status);
		return PCC_HOST_FAILED;
	}
	result = doca_pcc_mailbox_get_response_buffer(host->pcc, &response);
	if (result != DOCA_SUCCESS)
		return fail(why, room, "doca_pcc_mailbox_get_response_buffer failed", result);
	if (*reply_bytes > reply_room)
		*reply_bytes = reply_room;
	memcpy(reply, response, *reply_bytes);
	return PCC_HOST_OK;
}

int pcc_host_close(struct pcc_host *host, char *why, size_t room)
{
	int failure = PCC_HOST_OK;
	doca_error_t result;
	uint32_t state;

	if (host->pcc) {
		if (host->started && pcc_host_state(host, &state, why, room) == PCC_HOST_OK &&
		    state <= PCC_HOST_STANDBY) {
			result = doca_pcc_stop(host->pcc);
			if (result != DOCA_SUCCESS)
				failure = fail(why, room, "doca_pcc_stop failed", result);
		}
		result = doca_pcc_destroy(host->pcc);
		if (result != DOCA_SUCCESS && failure == PCC_HOST_OK)
			failure = fail(why, room, "doca_pcc_destroy failed", result);
	}
	if (host->device) {
		result = doca_dev_close(host->device);
		if (result != DOCA_SUCCESS && failure == PCC_HOST_OK)
			failure = fail(why, room, "doca_dev_close failed", result);
	}
	free(host);
	return failure;
}
