/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Maps and globals of the testbed's fabric object; ../include/fabric.h says what is in them. */
#ifndef INCASTFREE_FABRIC_STATE_H
#define INCASTFREE_FABRIC_STATE_H

#include <stdbool.h>

#include "bpf_common.h"

#include "edt.h"
#include "fabric.h"
#include "frame.h"
#include "rate_table.h"

#define MAX_PORTS   8192
#define MAX_ROUTES  (1u << 19)
#define MAX_MEMBERS (1u << 16)

const volatile __u32 host_count;
const volatile __u32 trunk; /* all ports share one interface */
const volatile __u32 tracing; /* records say which packet it was */

/* In .bss rather than in a map of their own: an access is an address, not a call, and there is no JIT
 * in a User-Mode-Linux kernel to inline the call.
 */
struct port ports[MAX_PORTS];
__u32 routes[MAX_ROUTES];
__u32 members[MAX_MEMBERS]; /* ports of the groups that routes point into */
struct record records[RECORD_CAPACITY];
struct record_head record_head;

/* Sized by the loader: see testbed/fabric/kernel.py. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rate_table);
} rate_tables SEC(".maps"); /* one a NIC */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edt_flow);
} edt_flows SEC(".maps"); /* source * host_count + destination */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct receive);
} receives SEC(".maps"); /* source * host_count + destination */

/* Start and end of a packet. Volatile, since clang otherwise keeps the first load in a 32-bit register, in
 * which the verifier no longer sees a pointer.
 */
#define packet_start(skb) ((void *)(long)*(volatile __u32 *)&(skb)->data)
#define packet_end(skb)   ((void *)(long)*(volatile __u32 *)&(skb)->data_end)

/* What a port and a NIC must know of a packet. */
struct packet {
	__u32 source, destination; /* hosts, by index; the source is not checked */
	__u32 wire_bytes;
	__u32 ports; /* UDP or TCP: source and destination port */
	__u32 psn; /* of a frame of the engine; else whatever stands there */
};

/* False for what is not IPv4 without options to a host of the testbed. */
static __always_inline bool packet_parse(struct __sk_buff *skb, struct packet *packet)
{
	void *data = packet_start(skb);
	void *end = packet_end(skb);

	if (data + FRAME_TRANSPORT_OFFSET > end) {
		/* A short packet of a real application, such as one without payload. */
		bpf_skb_change_tail(skb, FRAME_TRANSPORT_OFFSET, 0);
		data = packet_start(skb);
		end = packet_end(skb);
		if (data + FRAME_TRANSPORT_OFFSET > end)
			return false;
	}
	if (packet_be16(data, ETH_ALEN * 2) != ETH_P_IP ||
	    packet_u8(data, IPV4_OFFSET) != IPV4_VERSION_AND_LENGTH)
		return false;
	packet->source = packet_be32(data, IPV4_SOURCE_OFFSET) - HOST_ADDRESS_BASE;
	packet->destination = packet_be32(data, IPV4_DESTINATION_OFFSET) - HOST_ADDRESS_BASE;
	packet->wire_bytes = packet_be16(data, FRAME_IPV4_LENGTH_OFFSET) + FRAME_ETHERNET_BYTES;
	packet->ports = packet_be32(data, L4_PORTS_OFFSET);
	packet->psn = packet_be32(data, FRAME_PSN_OFFSET);
	return packet->destination < host_count;
}

/* The transport header of a frame of the engine, NULL for any other. */
static __always_inline struct transport *packet_transport(struct __sk_buff *skb)
{
	void *data = packet_start(skb);
	void *end = packet_end(skb);
	struct transport *transport = data + FRAME_TRANSPORT_OFFSET;

	if (data + FRAME_BYTES > end || transport->magic != FRAME_MAGIC)
		return NULL;
	return transport;
}

#endif
