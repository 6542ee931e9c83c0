/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* 32-bit finaliser with low bias ("lowbias32", Chris Wellons, Prospecting for Hash Functions, 2018). */
#ifndef INCASTFREE_MIX_H
#define INCASTFREE_MIX_H

#include <linux/types.h>

static inline __u32 mix32(__u32 x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	x ^= x >> 16;
	return x;
}

#endif
