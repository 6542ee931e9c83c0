/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-in, see README.md. */
#ifndef STANDIN_DOCA_PCC_DEV_ALGO_ACCESS_H
#define STANDIN_DOCA_PCC_DEV_ALGO_ACCESS_H

#include "doca_pcc_dev.h"

struct doca_pcc_dev_algo_meta_data {
	uint32_t algo_id, algo_major_version, algo_minor_version, algo_desc_size;
	uint64_t algo_desc_addr;
};

doca_pcc_dev_error_t doca_pcc_dev_algo_init_metadata(uint32_t algorithm,
						     const struct doca_pcc_dev_algo_meta_data *about,
						     uint32_t parameters, uint32_t counters);
doca_pcc_dev_error_t doca_pcc_dev_algo_init_param(uint32_t algorithm, uint32_t parameter, uint32_t value,
						  uint32_t most, uint32_t least, uint32_t permissions,
						  uint32_t description_size, uint64_t description_address);
doca_pcc_dev_error_t doca_pcc_dev_init_algo_slot(uint32_t port, uint32_t slot, uint32_t algorithm,
						 uint32_t enabled);

#endif
