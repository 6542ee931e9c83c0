// SPDX-License-Identifier: Apache-2.0
/* Row and column sums of a matrix in one pass over it. */
#ifndef INCASTFREE_LOADS_H
#define INCASTFREE_LOADS_H

#include <stddef.h>
#include <stdint.h>

/* Sums of a hosts x hosts matrix, row by row and column by column, in 64 bits and without the diagonal. Sums
 * of 32-bit entries are exact up to 2^32 hosts, those of 64-bit entries modulo 2^64. -1 where there is no
 * memory.
 */
int loads_32(const uint32_t *matrix, size_t hosts, uint64_t *sent, uint64_t *received);

/* The same; returns all entries ORed together, which is negative if one of them is. */
int64_t loads_64(const int64_t *matrix, size_t hosts, uint64_t *sent, uint64_t *received);

#endif
