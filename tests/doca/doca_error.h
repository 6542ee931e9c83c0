/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-in, see README.md. The numbers are not DOCA's. */
#ifndef STANDIN_DOCA_ERROR_H
#define STANDIN_DOCA_ERROR_H

typedef enum doca_error {
	DOCA_SUCCESS,
	DOCA_ERROR_IN_USE,
	DOCA_ERROR_NOT_SUPPORTED,
	DOCA_ERROR_INVALID_VALUE,
	DOCA_ERROR_NO_MEMORY,
	DOCA_ERROR_BAD_STATE,
	DOCA_ERROR_IO_FAILED,
} doca_error_t;

const char *doca_error_get_descr(doca_error_t error);

#endif
