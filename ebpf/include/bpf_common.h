/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What every program of ours needs before its own code. */
#ifndef INCASTFREE_BPF_COMMON_H
#define INCASTFREE_BPF_COMMON_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define IPV4_VERSION_AND_LENGTH 0x45 /* version 4, no options */

#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* Read at a fixed offset from the start of a packet whose bounds were checked. */
#define packet_u8(data, offset)   (*(__u8 *)((data) + (offset)))
#define packet_be16(data, offset) bpf_ntohs(*(__be16 *)((data) + (offset)))
#define packet_be32(data, offset) bpf_ntohl(*(__be32 *)((data) + (offset)))

#define packet_set_be16(data, offset, value) (*(__be16 *)((data) + (offset)) = bpf_htons(value))

#define IPV4_OFFSET             14
#define IPV4_CHECKSUM_OFFSET    24
#define IPV4_SOURCE_OFFSET      26
#define IPV4_DESTINATION_OFFSET 30
#define L4_PORTS_OFFSET         34
#define UDP_LENGTH_OFFSET       38

#endif
