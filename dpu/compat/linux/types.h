/* SPDX-License-Identifier: Apache-2.0 */
/* The names of ebpf/include/rate_table.h where there is no Linux: on the DPU. */
#ifndef INCASTFREE_PCC_TYPES_H
#define INCASTFREE_PCC_TYPES_H

#include <stdint.h>

typedef uint32_t __u32;
typedef unsigned long long __u64;

#endif
