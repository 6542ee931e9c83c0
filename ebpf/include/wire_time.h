/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Time on the wire from bytes and a speed, in integers. */
#ifndef INCASTFREE_WIRE_TIME_H
#define INCASTFREE_WIRE_TIME_H

#include <linux/types.h>

/* byte_ns is the time of one byte in units of 2^-32 ns: 800 Gb/s is 0.01 ns, to within 10^-8. */
#define BYTE_NS_FRACTION_BITS 32

static inline __u64 wire_time_ns(__u32 bytes, __u64 byte_ns)
{
	return (bytes * byte_ns) >> BYTE_NS_FRACTION_BITS;
}

#endif
