/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The testbed's synthetic frames: Ethernet, IPv4, UDP and a transport header, cut off after that.
 *
 * The length in the IPv4 header is that of the whole packet, as in a capture with a snap length: NIC and
 * switches charge it, and so treat it as they treat the frame of a real application. The UDP source port
 * carries the entropy value, as RoCEv2 and UEC over UDP do: a switch that hashes the five-tuple spreads by
 * it. The DSCP says whether a packet is data or control, the two bits below it are those of ECN: a switch
 * looks at no transport header.
 *
 *   0        14       34       42    46                      86
 *   | ether  | IPv4   | UDP    | psn | struct transport_header      |
 *
 * The transport header starts at byte 46: with the two bytes (NET_IP_ALIGN) by which the kernel sets a frame
 * off, that is a multiple of 8, which the verifier demands where unaligned access is not cheap. All that a
 * switch reads lies in the first 46 bytes, in one line of the processor's cache.
 *
 * Nobody forwards by the Ethernet addresses. Where links are veth, the sender of a frame notes in them when
 * it is due at the other end of the link: no other place of an skb outlives a switch that is a process.
 */
#ifndef INCASTFREE_FRAME_H
#define INCASTFREE_FRAME_H

#include <linux/types.h>

#define FRAME_ETHERNET_BYTES     14
#define FRAME_DUE_HIGH_OFFSET    2 /* __u32 each, in the order of this machine's bytes */
#define FRAME_DUE_LOW_OFFSET     6
#define FRAME_TOS_OFFSET         15 /* DSCP and ECN: RFC 2474, RFC 3168 */
#define FRAME_IPV4_LENGTH_OFFSET 16
#define FRAME_PSN_OFFSET         42 /* __be32: packet sequence number within the flow */
#define FRAME_TRANSPORT_OFFSET   46
#define FRAME_BYTES              86
#define FRAME_MAGIC              0x49465249u /* the bytes "IRFI" in little-endian order */
#define FRAME_UDP_PORT           4793
#define FRAME_ENTROPY_PORT       49152 /* UDP source port of entropy value 0 */

/* Wire bytes of what has no payload: ACK, NACK, a trimmed packet. */
#define CONTROL_BYTES 64

#define TOS_ECN         0x03
#define TOS_ECN_CAPABLE 0x02 /* ECT(0) */
#define TOS_ECN_MARK    0x03 /* CE */
#define TOS_DATA        TOS_ECN_CAPABLE
/* From here on a switch serves at strict priority: CS6, network control (RFC 4594). */
#define TOS_CONTROL 0xc0
#define TOS_TRIMMED 0xc8

/* Host h has the address 10.0.0.1 + h. */
#define HOST_ADDRESS_BASE 0x0a000001u

enum transport_kind {
	TRANSPORT_DATA,
	TRANSPORT_ACK,
	TRANSPORT_NACK,
};

#define TRANSPORT_ACK_REQUEST    1 /* of data: answer at once */
#define TRANSPORT_RETRANSMISSION 2 /* of data, and of the ACK that answers it */
#define TRANSPORT_ECN_ECHO       4 /* of an ACK: the packet that it answers was marked */
#define TRANSPORT_BACKGROUND     8 /* of data: a load that nobody waits for, counted and not answered */

/* In the PSN of such a packet, so that a trace tells it from those of the demand. */
#define BACKGROUND_PSN 0x80000000u

struct transport_header {
	__u64 ready_ns; /* data: when the sender offered it to its NIC; the NIC may hold it longer */
	__u32 magic;
	__u8 kind;
	__u8 flags;
	__u8 copy; /* 1 for the first transmission of this packet; 255 and later ones are not told apart */
	__u8 reserved;
	/* From here on of ACK and NACK, which have the PSN of the packet that they answer. */
	__u64 received_bytes; /* of the flow, each packet counted once */
	__u64 sack; /* bit i: packet sack_base + i has come in */
	__u32 sack_base;
	__u32 cumulative; /* all packets below have come in */
};

#endif
