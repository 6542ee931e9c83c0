/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Reading a packet, and the few bytes of it that a fabric changes. */
#ifndef INCASTFREE_FABRIC_PACKET_H
#define INCASTFREE_FABRIC_PACKET_H

#include "state.h"

/* Start and end of a packet. Volatile, since clang otherwise keeps the first load in a 32-bit register, in
 * which the verifier no longer sees a pointer.
 */
#define packet_start(skb) ((void *)(long)*(volatile __u32 *)&(skb)->data)
#define packet_end(skb)   ((void *)(long)*(volatile __u32 *)&(skb)->data_end)

/* What a port and a NIC must know of a packet. */
struct packet {
	__u32 source, destination; /* hosts, by index; the source is not checked */
	__u32 wire_bytes;
	__u32 tos;
};

#define packet_is_control(packet) ((packet)->tos >= TOS_CONTROL)

/* False for what is not IPv4 without options to a host of the testbed. */
static __always_inline bool packet_parse(struct __sk_buff *skb, struct packet *packet)
{
	void *data = packet_start(skb);
	void *end = packet_end(skb);

	if (data + FRAME_TRANSPORT_OFFSET > end) {
		/* A real application's: short, such as one without payload, or one whose bytes lie in pages.
		 */
		if (skb->len < FRAME_TRANSPORT_OFFSET)
			bpf_skb_change_tail(skb, FRAME_TRANSPORT_OFFSET, 0);
		else
			bpf_skb_pull_data(skb, FRAME_TRANSPORT_OFFSET);
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
	packet->tos = packet_u8(data, FRAME_TOS_OFFSET);
	return packet->destination < host_count;
}

/* A packet is read once, where it enters; from there on its skb says what is in it. Each hop would otherwise
 * wait for a line of the packet that has long left the processor's cache. sch_fq keeps its own notes in
 * cb[0] to cb[2] (struct fq_skb_cb).
 */
static __always_inline void packet_note(struct __sk_buff *skb, const struct packet *packet)
{
	skb->cb[3] = packet->source << 16 | packet->destination;
	skb->cb[4] = packet->wire_bytes << 8 | packet->tos;
}

/* False for what does not go to a host of the testbed. */
static __always_inline bool packet_noted(const struct __sk_buff *skb, struct packet *packet)
{
	__u32 hosts = skb->cb[3], rest = skb->cb[4];

	packet->source = hosts >> 16;
	packet->destination = hosts & 0xffff;
	packet->wire_bytes = rest >> 8;
	packet->tos = rest & 0xff;
	return packet->destination < host_count;
}

/* A word of the packet behind its IPv4 header, 0 of one that is too short. */
static __always_inline __u32 packet_word(struct __sk_buff *skb, __u32 offset)
{
	void *data = packet_start(skb);

	return data + FRAME_TRANSPORT_OFFSET <= packet_end(skb) ? packet_be32(data, offset) : 0;
}

/* UDP or TCP: source and destination port. */
#define packet_ports(skb) packet_word(skb, L4_PORTS_OFFSET)
/* Of a frame of the engine; else whatever stands there. */
#define packet_psn(skb) packet_word(skb, FRAME_PSN_OFFSET)

/* The transport header of a frame of the engine, NULL for any other. */
static __always_inline struct transport_header *packet_transport(struct __sk_buff *skb)
{
	void *data = packet_start(skb);
	void *end = packet_end(skb);
	struct transport_header *transport = data + FRAME_TRANSPORT_OFFSET;

	if (data + FRAME_BYTES > end || transport->magic != FRAME_MAGIC)
		return NULL;
	return transport;
}

#define IPV4_FRAGMENT_OFFSET   20
#define IPV4_FRAGMENT_MASK     0x3fff
#define IPV4_PROTOCOL_OFFSET   23
#define IPV4_HEADER_BYTES      20
#define IPV4_TCP               6
#define IPV4_UDP               17
#define TCP_DATA_OFFSET_OFFSET 46

/* Of a packet of a real program. */
static __always_inline struct connection packet_connection(struct __sk_buff *skb, const struct packet *packet)
{
	struct connection connection = {packet->source << 16 | packet->destination, 0};
	void *data = packet_start(skb);
	__u8 protocol;

	if (data + FRAME_TRANSPORT_OFFSET > packet_end(skb))
		return connection;
	protocol = packet_u8(data, IPV4_PROTOCOL_OFFSET);
	if ((protocol == IPV4_TCP || protocol == IPV4_UDP) &&
	    !(packet_be16(data, IPV4_FRAGMENT_OFFSET) & IPV4_FRAGMENT_MASK))
		connection.ports = packet_be32(data, L4_PORTS_OFFSET);
	return connection;
}

/* A TCP segment that carries no data, such as an ACK. */
static __always_inline bool packet_is_pure_ack(struct __sk_buff *skb, const struct packet *packet)
{
	void *data = packet_start(skb);

	if (data + TCP_DATA_OFFSET_OFFSET + 1 > packet_end(skb) ||
	    packet_u8(data, IPV4_PROTOCOL_OFFSET) != IPV4_TCP)
		return false;
	return packet->wire_bytes ==
	       FRAME_ETHERNET_BYTES + IPV4_HEADER_BYTES + 4 * (packet_u8(data, TCP_DATA_OFFSET_OFFSET) >> 4);
}

/* What a switch hashes besides the hosts: the ports; of a real program's packet the number of its connection.
 */
static CALLED __u32 packet_entropy(struct __sk_buff *skb, const struct packet *packet)
{
	struct connection connection;
	__u32 *number;

	if (!real_programs)
		return packet_ports(skb);
	connection = packet_connection(skb, packet);
	number = bpf_map_lookup_elem(&connections, &connection);
	return number ? *number : 0;
}

/* When a frame of the engine is due at the end of its link; see frame.h. (A call, since clang else keeps the
 * address of skb->data in a register, which the verifier refuses.)
 */
static __noinline void packet_set_due(struct __sk_buff *skb, __u64 due_ns)
{
	void *data = packet_start(skb);

	if (!packet_transport(skb) || data + FRAME_TRANSPORT_OFFSET > packet_end(skb))
		return;
	*(__u32 *)(data + FRAME_DUE_HIGH_OFFSET) = (__u32)(due_ns >> 32);
	*(__u32 *)(data + FRAME_DUE_LOW_OFFSET) = (__u32)due_ns;
}

/* The same back; now_ns of any other packet. */
static __always_inline __u64 packet_due(struct __sk_buff *skb, __u64 now_ns)
{
	void *data = packet_start(skb);

	if (!packet_transport(skb) || data + FRAME_TRANSPORT_OFFSET > packet_end(skb))
		return now_ns;
	return (__u64) * (__u32 *)(data + FRAME_DUE_HIGH_OFFSET) << 32 |
	       *(__u32 *)(data + FRAME_DUE_LOW_OFFSET);
}

/* Sets a 16-bit word of the IPv4 header, and the checksum after it (RFC 1624, equation 3). */
static __always_inline void ipv4_set_word(void *data, __u32 offset, __u16 word)
{
	__u32 sum = (__u16)~packet_be16(data, IPV4_CHECKSUM_OFFSET);

	sum += (__u16)~packet_be16(data, offset) + word;
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	packet_set_be16(data, IPV4_CHECKSUM_OFFSET, (__u16)~sum);
	packet_set_be16(data, offset, word);
}

/* Makes the packet one of another class and length; another length is for frames of the engine alone. */
static __always_inline bool packet_restamp(struct __sk_buff *skb, struct packet *packet, __u32 tos,
					   __u32 wire_bytes)
{
	void *data = packet_start(skb);

	if (data + FRAME_TRANSPORT_OFFSET > packet_end(skb))
		return false;
	ipv4_set_word(data, IPV4_OFFSET, IPV4_VERSION_AND_LENGTH << 8 | tos);
	packet->tos = tos;
	if (wire_bytes != packet->wire_bytes) {
		ipv4_set_word(data, FRAME_IPV4_LENGTH_OFFSET, wire_bytes - FRAME_ETHERNET_BYTES);
		packet->wire_bytes = wire_bytes;
		packet_set_be16(data, UDP_LENGTH_OFFSET, wire_bytes - L4_PORTS_OFFSET);
	}
	packet_note(skb, packet);
	return true;
}

#endif
