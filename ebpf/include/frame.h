/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The testbed's synthetic data frame: Ethernet, IPv4, UDP and a transport header, cut off after that.
 *
 * The length in the IPv4 header is that of the whole packet, as in a capture with a snap length: NIC and
 * switches charge it, and so treat it as they treat the frame of a real application. The UDP source port
 * carries the entropy value, as RoCEv2 and UEC over UDP do: a switch that hashes the five-tuple spreads by
 * it.
 *
 *   0        14       34       42    46                      62
 *   | ether  | IPv4   | UDP    | psn | struct transport      |
 *
 * The transport header starts at byte 46: with the two bytes (NET_IP_ALIGN) by which the kernel sets a frame
 * off, that is a multiple of 8, which the verifier demands where unaligned access is not cheap. All that a
 * switch reads lies in the first 46 bytes, in one line of the processor's cache.
 */
#ifndef INCASTFREE_FRAME_H
#define INCASTFREE_FRAME_H

#include <linux/types.h>

#define FRAME_ETHERNET_BYTES     14
#define FRAME_IPV4_LENGTH_OFFSET 16
#define FRAME_PSN_OFFSET         42 /* __be32: packet sequence number within the flow */
#define FRAME_TRANSPORT_OFFSET   46
#define FRAME_BYTES              62
#define FRAME_MAGIC              0x49465249u /* the bytes "IRFI" in little-endian order */
#define FRAME_UDP_PORT           4793
#define FRAME_ENTROPY_PORT       49152 /* UDP source port of entropy value 0 */

/* Host h has the address 10.0.0.1 + h. */
#define HOST_ADDRESS_BASE 0x0a000001u

struct transport {
	__u64 ready_ns; /* when the sender offered it to its NIC; the NIC may hold it longer */
	__u32 magic;
	__u32 reserved;
};

#endif
