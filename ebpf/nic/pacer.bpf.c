// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The deployable pacer: tc egress of a real interface, with sch_fq behind it that holds packets.
 *
 * A flow is a destination address of the peers map, under up to two VLAN tags. What goes to no peer, and to a
 * peer without a rate, passes untouched. Of a tunnel's packet the outer address counts.
 *
 * The time of departure is given before a transmit queue is chosen: the queues may be many.
 */
#include "bpf_common.h"

#include "edt.h"
#include "rate_table.h"
#include "wire_time.h"

#define IPV4_DESTINATION 16 /* from the start of the IP header */
#define IPV6_DESTINATION 24 /* extension headers come after it */
#define VLAN_BYTES       4
#define VLAN_TAGS        2 /* in the packet: 802.1ad and 802.1Q. One more may be the NIC's to insert. */
#define FRAME_BYTES_MIN  60 /* IEEE 802.3, without the FCS: the NIC pads what is shorter */

/* What no socket waits for, such as a virtual machine's packets, is dropped rather than queued for longer:
 * else a fast source would fill the memory. A socket is held up by its send buffer.
 */
#define HORIZON_NS (1ULL << 30)

const volatile __u64 byte_ns; /* time of one byte at line rate: see wire_time.h */
const volatile __u32 header_bytes = 24; /* what Ethernet adds on the wire: preamble, FCS, gap */

struct address {
	__u32 word[4]; /* IPv6 in network order, or IPv4 mapped (::ffff:a.b.c.d) */
};

struct peer {
	__u32 slot; /* of the rate table */
	__u32 clock; /* of edt_flows: stays the address's own when its slot changes */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RATE_SLOTS);
	__type(key, struct address);
	__type(value, struct peer);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rate_table);
} rate_tables SEC(".maps");

/* The egress hook runs before the qdisc's lock: two processors may send to one peer at once. */
struct locked_flow {
	struct bpf_spin_lock lock;
	__u32 drops; /* beyond the horizon */
	struct edt_flow flow;
	__u64 bytes; /* on the wire */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RATE_SLOTS);
	__type(key, __u32);
	__type(value, struct locked_flow);
} edt_flows SEC(".maps");

/* 0 if the packet has no destination address. Copied, since headers may lie outside skb->data..data_end. */
static __always_inline int read_destination(struct __sk_buff *skb, struct address *address)
{
	__u32 offset = ETH_HLEN, tag;
	__be16 protocol = (__be16)skb->protocol;

#pragma unroll
	for (tag = 0; tag < VLAN_TAGS; tag++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, offset + VLAN_BYTES - 2, &protocol, 2))
			return 0;
		offset += VLAN_BYTES;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		address->word[2] = bpf_htonl(0xffff);
		return !bpf_skb_load_bytes(skb, offset + IPV4_DESTINATION, &address->word[3], 4);
	}
	if (protocol == bpf_htons(ETH_P_IPV6))
		return !bpf_skb_load_bytes(skb, offset + IPV6_DESTINATION, address, sizeof(*address));
	return 0;
}

static __always_inline __u32 wire_bytes_of(struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs, bytes;

	/* A packet of a virtual machine may say its segments' size and not how many they are. */
	if (!segments)
		segments = skb->gso_size ? skb->len / skb->gso_size + 1 : 1;
	/* wire_len counts the headers that segmentation will repeat (net/core/dev.c, qdisc_pkt_len_init). */
	bytes = skb->wire_len + (skb->vlan_present ? segments * VLAN_BYTES : 0);
	if (bytes < FRAME_BYTES_MIN)
		bytes = FRAME_BYTES_MIN;
	return bytes + segments * header_bytes;
}

SEC("tc")
int pacer_egress(struct __sk_buff *skb)
{
	struct address address = {};
	struct rate_table *table;
	struct locked_flow *locked;
	struct edt_flow before;
	struct peer *peer;
	__u64 now_ns, wire_ns, depart_ns, own_ns;
	__u32 zero = 0, clock, wire_bytes, steps;
	int waited_for, too_far;

	if (!read_destination(skb, &address))
		return TC_ACT_OK;
	peer = bpf_map_lookup_elem(&peers, &address);
	table = bpf_map_lookup_elem(&rate_tables, &zero);
	if (!peer || !table)
		return TC_ACT_OK;
	clock = peer->clock;
	steps = rate_table_steps(table, peer->slot);
	locked = bpf_map_lookup_elem(&edt_flows, &clock);
	if (!locked || !steps)
		return TC_ACT_OK;

	wire_bytes = wire_bytes_of(skb);
	wire_ns = wire_time_ns(wire_bytes, byte_ns);
	waited_for = skb->sk != 0;
	own_ns = skb->tstamp;
	now_ns = bpf_ktime_get_ns();
	bpf_spin_lock(&locked->lock);
	before = locked->flow;
	depart_ns = edt_depart(&locked->flow, now_ns, wire_ns, steps);
	too_far = !waited_for && depart_ns - now_ns > HORIZON_NS;
	if (too_far) {
		locked->flow = before;
		locked->drops++;
	} else {
		locked->bytes += wire_bytes;
	}
	bpf_spin_unlock(&locked->lock);
	if (too_far)
		return TC_ACT_SHOT;
	/* TCP paces its sockets by the same means: where that is slower it stays, and no other socket waits
	 * for it. What lies further ahead is of another clock (SO_TXTIME with CLOCK_TAI).
	 */
	if (own_ns > depart_ns && own_ns - now_ns < HORIZON_NS)
		return TC_ACT_OK;
	skb->tstamp = depart_ns;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "GPL";
