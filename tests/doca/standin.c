// SPDX-License-Identifier: Apache-2.0
/* See README.md. One host with the devices mlx5_0, which runs programs, and mlx5_1, which does not. Which
 * process is active on mlx5_0 is who holds the lock of the file that STANDIN_LOCK names.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "doca_dev.h"
#include "doca_error.h"
#include "doca_pcc.h"
#include "doca_pcc_dev.h"
#include "doca_pcc_dev_algo_access.h"
#include "doca_pcc_dev_event.h"

const int incastfree_standin = 1; /* by which the Python backend knows it */

#define FEWEST_THREADS 4
#define MOST_THREADS   64
#define PARAMETERS     0x1e

struct doca_devinfo {
	const char *name;
	int programmable;
};

struct doca_dev {
	int contexts;
};

struct doca_pcc_app {
	int unused;
};

struct doca_pcc {
	struct doca_dev *device;
	struct doca_pcc_app *app;
	uint32_t threads, request_size, response_size;
	int started, stopped, lock;
	char *request, *response;
};

static struct doca_devinfo infos[] = {{"mlx5_1", 0}, {"mlx5_0", 1}};
static struct doca_devinfo *list_of_infos[] = {&infos[0], &infos[1]};
static struct doca_pcc_app app;
struct doca_pcc_app *incastfree_pcc_app = &app; /* dpacc makes this one */

/* ---- what the tests turn and look at ---- */

static char journal[8192];
static char failing[64];
static int failing_error;
static int broken = -1; /* state that the process is in, whatever it did */
static int open_objects;
static struct doca_pcc *latest;
static uint32_t parameter_values[PARAMETERS], parameter_count, slots;

/* Calls so far, a word each, and how they ended if not well. */
const char *standin_journal(void);
void standin_reset(void);
/* The next call of this function fails. */
void standin_fail(const char *function, int error);
void standin_break(int state);
/* Devices, lists and contexts that are open. */
int standin_open_objects(void);
/* As if the process that has them open had ended. */
void standin_forget(void);
uint32_t standin_parameters(uint32_t *values);
uint32_t standin_slots(void);
uint32_t standin_event(uint32_t *context, uint32_t type, uint32_t port, uint32_t slot, uint32_t qpn,
		       uint32_t timestamp, uint32_t sent_32bytes, uint32_t coalesced);

const char *standin_journal(void)
{
	return journal;
}

void standin_reset(void)
{
	journal[0] = failing[0] = 0;
	broken = -1;
}

void standin_fail(const char *function, int error)
{
	snprintf(failing, sizeof(failing), "%s", function);
	failing_error = error;
}

void standin_break(int state)
{
	broken = state;
}

int standin_open_objects(void)
{
	return open_objects;
}

void standin_forget(void)
{
	if (latest && latest->lock >= 0)
		close(latest->lock);
	latest = NULL;
	open_objects = 0;
}

uint32_t standin_parameters(uint32_t *values)
{
	memcpy(values, parameter_values, parameter_count * sizeof(*values));
	return parameter_count;
}

uint32_t standin_slots(void)
{
	return slots;
}

/* A call: noted, and failed if that was asked for, or if it is not allowed now. */
static doca_error_t called(const char *function, doca_error_t result)
{
	size_t used = strlen(journal);

	if (!strcmp(failing, function)) {
		result = (doca_error_t)failing_error;
		failing[0] = 0;
	}
	snprintf(journal + used, sizeof(journal) - used, "%s%s%s", used ? " " : "", function,
		 result ? "!" : "");
	return result;
}

/* ---- devices ---- */

const char *doca_error_get_descr(doca_error_t error)
{
	static const char *const texts[] = {"Success",   "In use",    "Not supported", "Invalid value",
					    "No memory", "Bad state", "I/O failed"};

	return texts[error];
}

doca_error_t doca_devinfo_create_list(struct doca_devinfo ***list, uint32_t *count)
{
	doca_error_t result = called("create_list", DOCA_SUCCESS);

	*list = list_of_infos;
	*count = sizeof(infos) / sizeof(*infos);
	open_objects += !result;
	return result;
}

doca_error_t doca_devinfo_destroy_list(struct doca_devinfo **list)
{
	open_objects--;
	return list == list_of_infos ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE;
}

doca_error_t doca_devinfo_get_ibdev_name(const struct doca_devinfo *info, char *name, uint32_t size)
{
	snprintf(name, size, "%s", info->name);
	return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_get_is_pcc_supported(const struct doca_devinfo *info)
{
	return info->programmable ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED;
}

doca_error_t doca_dev_open(struct doca_devinfo *info, struct doca_dev **device)
{
	doca_error_t result =
		called("dev_open", info->programmable ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED);

	if (result)
		return result;
	*device = calloc(1, sizeof(**device));
	open_objects++;
	return DOCA_SUCCESS;
}

doca_error_t doca_dev_close(struct doca_dev *device)
{
	doca_error_t result = called("dev_close", device->contexts ? DOCA_ERROR_IN_USE : DOCA_SUCCESS);

	if (result)
		return result;
	free(device);
	open_objects--;
	return DOCA_SUCCESS;
}

/* ---- contexts ---- */

static doca_error_t before_start(const struct doca_pcc *pcc)
{
	return pcc->started ? DOCA_ERROR_BAD_STATE : DOCA_SUCCESS;
}

doca_error_t doca_pcc_create(struct doca_dev *device, struct doca_pcc **pcc)
{
	doca_error_t result = called("create", device ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE);

	if (result)
		return result;
	*pcc = latest = calloc(1, sizeof(**pcc));
	(*pcc)->device = device;
	(*pcc)->lock = -1;
	/* What the public sample has where nobody sets it. */
	(*pcc)->request_size = (*pcc)->response_size = 4;
	device->contexts++;
	open_objects++;
	return DOCA_SUCCESS;
}

doca_error_t doca_pcc_get_min_num_threads(struct doca_pcc *pcc, uint32_t *count)
{
	*count = FEWEST_THREADS;
	return called("get_min_num_threads", pcc ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE);
}

doca_error_t doca_pcc_get_max_num_threads(struct doca_pcc *pcc, uint32_t *count)
{
	*count = MOST_THREADS;
	return called("get_max_num_threads", pcc ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE);
}

doca_error_t doca_pcc_set_app(struct doca_pcc *pcc, struct doca_pcc_app *own)
{
	pcc->app = own;
	return called("set_app", before_start(pcc));
}

doca_error_t doca_pcc_set_thread_affinity(struct doca_pcc *pcc, uint32_t count, uint32_t *threads)
{
	doca_error_t result = before_start(pcc);

	if (!result && (!threads || count < FEWEST_THREADS || count > MOST_THREADS))
		result = DOCA_ERROR_INVALID_VALUE;
	pcc->threads = count;
	return called("set_thread_affinity", result);
}

doca_error_t doca_pcc_set_mailbox(struct doca_pcc *pcc, uint32_t request_size, uint32_t response_size)
{
	pcc->request_size = request_size;
	pcc->response_size = response_size;
	return called("set_mailbox", before_start(pcc));
}

static int lock_device(struct doca_pcc *pcc)
{
	return flock(pcc->lock, LOCK_EX | LOCK_NB) == 0;
}

doca_error_t doca_pcc_start(struct doca_pcc *pcc)
{
	const char *lock = getenv("STANDIN_LOCK");
	doca_error_t result = before_start(pcc);
	uint32_t disabled_events;

	if (!pcc->app || !pcc->threads || !lock)
		result = DOCA_ERROR_BAD_STATE;
	result = called("start", result);
	if (result)
		return result;
	pcc->lock = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (pcc->lock < 0)
		return DOCA_ERROR_IO_FAILED;
	lock_device(pcc);
	pcc->request = calloc(1, pcc->request_size);
	pcc->response = calloc(1, pcc->response_size);
	pcc->started = 1;
	doca_pcc_dev_user_init(&disabled_events);
	return DOCA_SUCCESS;
}

static doca_pcc_process_state_t state_of(const struct doca_pcc *pcc)
{
	if (broken >= 0)
		return (doca_pcc_process_state_t)broken;
	if (!pcc->started || pcc->stopped)
		return DOCA_PCC_PS_DEACTIVATED;
	return lock_device((struct doca_pcc *)pcc) ? DOCA_PCC_PS_ACTIVE : DOCA_PCC_PS_STANDBY;
}

doca_error_t doca_pcc_get_process_state(const struct doca_pcc *pcc, doca_pcc_process_state_t *state)
{
	*state = state_of(pcc);
	return called("get_process_state", DOCA_SUCCESS);
}

static doca_error_t while_active(const struct doca_pcc *pcc)
{
	return state_of(pcc) == DOCA_PCC_PS_ACTIVE ? DOCA_SUCCESS : DOCA_ERROR_BAD_STATE;
}

doca_error_t doca_pcc_stop(struct doca_pcc *pcc)
{
	doca_error_t result =
		called("stop", state_of(pcc) <= DOCA_PCC_PS_STANDBY ? DOCA_SUCCESS : DOCA_ERROR_BAD_STATE);

	pcc->stopped |= !result;
	return result;
}

doca_error_t doca_pcc_destroy(struct doca_pcc *pcc)
{
	int runs = pcc->started && state_of(pcc) <= DOCA_PCC_PS_STANDBY;
	doca_error_t result = called("destroy", runs ? DOCA_ERROR_IN_USE : DOCA_SUCCESS);

	if (result)
		return result;
	if (pcc->lock >= 0)
		close(pcc->lock);
	free(pcc->request);
	free(pcc->response);
	pcc->device->contexts--;
	latest = latest == pcc ? NULL : latest;
	free(pcc);
	open_objects--;
	return DOCA_SUCCESS;
}

/* ---- mailbox ---- */

doca_error_t doca_pcc_mailbox_get_request_buffer(const struct doca_pcc *pcc, void **buffer)
{
	*buffer = pcc->request;
	return called("get_request_buffer", while_active(pcc));
}

doca_error_t doca_pcc_mailbox_get_response_buffer(const struct doca_pcc *pcc, void **buffer)
{
	*buffer = pcc->response;
	return called("get_response_buffer", while_active(pcc));
}

doca_error_t doca_pcc_mailbox_send(struct doca_pcc *pcc, uint32_t request_size, uint32_t *response_size,
				   uint32_t *callback_status)
{
	const char *delay_ms = getenv("STANDIN_DELAY_MS");
	long milliseconds = delay_ms ? atol(delay_ms) : 0;
	struct timespec delay = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	doca_error_t result = while_active(pcc);

	if (!result && request_size > pcc->request_size)
		result = DOCA_ERROR_INVALID_VALUE;
	result = called("send", result);
	if (result)
		return result;
	nanosleep(&delay, NULL);
	*response_size = 0;
	*callback_status = doca_pcc_dev_user_mailbox_handle(pcc->request, request_size, pcc->response_size,
							    pcc->response, response_size);
	return *response_size > pcc->response_size ? DOCA_ERROR_IO_FAILED : DOCA_SUCCESS;
}

/* ---- the device's side ---- */

doca_pcc_dev_error_t doca_pcc_dev_algo_init_metadata(uint32_t algorithm,
						     const struct doca_pcc_dev_algo_meta_data *about,
						     uint32_t parameters, uint32_t counters)
{
	parameter_count = parameters;
	slots = 0;
	return algorithm || !about->algo_desc_size || parameters > PARAMETERS || counters > 0xf
		       ? DOCA_PCC_DEV_STATUS_FAIL
		       : DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_error_t doca_pcc_dev_algo_init_param(uint32_t algorithm, uint32_t parameter, uint32_t value,
						  uint32_t most, uint32_t least, uint32_t permissions,
						  uint32_t description_size, uint64_t description_address)
{
	if (algorithm || parameter >= parameter_count || value > most || value < least || !permissions ||
	    !description_size || !description_address)
		return DOCA_PCC_DEV_STATUS_FAIL;
	parameter_values[parameter] = value;
	return DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_error_t doca_pcc_dev_init_algo_slot(uint32_t port, uint32_t slot, uint32_t algorithm,
						 uint32_t enabled)
{
	if (port >= DOCA_PCC_DEV_MAX_NUM_PORTS || slot || algorithm || !enabled)
		return DOCA_PCC_DEV_STATUS_FAIL;
	slots |= 1u << port;
	return DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_event_general_attr_t doca_pcc_dev_get_ev_attr(doca_pcc_dev_event_t *event)
{
	return event->general;
}

uint32_t doca_pcc_dev_get_timestamp(doca_pcc_dev_event_t *event)
{
	return event->timestamp;
}

uint32_t doca_pcc_dev_get_flow_qpn(doca_pcc_dev_event_t *event)
{
	return event->qpn;
}

doca_pcc_dev_roce_tx_cntrs_t doca_pcc_dev_get_roce_tx_cntrs(doca_pcc_dev_event_t *event)
{
	return event->counters;
}

doca_pcc_dev_ack_nack_cnp_extra_t doca_pcc_dev_get_ack_nack_cnp_extra(doca_pcc_dev_event_t *event)
{
	return event->extra;
}

uint32_t standin_event(uint32_t *context, uint32_t type, uint32_t port, uint32_t slot, uint32_t qpn,
		       uint32_t timestamp, uint32_t sent_32bytes, uint32_t coalesced)
{
	doca_pcc_dev_event_t event = {
		.general = {.ev_type = type & 0xff, .port_num = port & 0xff},
		.timestamp = timestamp,
		/* On BlueField-3 only a TX event has a QP number; on the others the word reads 1. */
		.qpn = type == DOCA_PCC_DEV_EVNT_ROCE_TX ? qpn : 1,
		.counters = {.sent_32bytes = sent_32bytes & 0xffff, .sent_pkts = 1},
		.extra = {.num_coalesced = coalesced & 0xffff},
	};
	doca_pcc_dev_attr_t attributes = {.algo_slot = slot & 0xf};
	doca_pcc_dev_results_t results = {.rtt_req = 1};

	doca_pcc_dev_user_algo((doca_pcc_dev_algo_ctxt_t *)context, &event, &attributes, &results);
	return results.rtt_req ? 0 : results.rate;
}
