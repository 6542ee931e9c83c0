// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The deployable pacer: tc egress of a real interface, with sch_fq as the root qdisc that holds packets.
 *
 * A flow is a destination address of the peers map. What goes to no peer, and to a peer without a rate,
 * passes untouched.
 */
#include "bpf_common.h"

#include "edt.h"
#include "rate_table.h"
#include "wire_time.h"

#define IPV6_DESTINATION_OFFSET 38

const volatile __u64 byte_ns; /* time of one byte at line rate: see wire_time.h */
const volatile __u32 header_bytes = 24; /* what Ethernet adds on the wire: preamble, FCS, gap */

struct address {
	__u32 word[4]; /* IPv6 in network order, or IPv4 mapped (::ffff:a.b.c.d) */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RATE_SLOTS);
	__type(key, struct address);
	__type(value, __u32);
} peers SEC(".maps"); /* address -> slot of the rate table */

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
	__u32 reserved;
	struct edt_flow flow;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RATE_SLOTS);
	__type(key, __u32);
	__type(value, struct locked_flow);
} edt_flows SEC(".maps");

SEC("tc")
int pacer_egress(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct address address = {};
	struct rate_table *table;
	struct locked_flow *locked;
	__u64 now_ns, wire_ns, depart_ns;
	__u32 zero = 0, slot, *found, segments, wire_bytes, steps;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (data + IPV4_DESTINATION_OFFSET + 4 > end)
			return TC_ACT_OK;
		address.word[2] = bpf_htonl(0xffff);
		address.word[3] = *(__u32 *)(data + IPV4_DESTINATION_OFFSET);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (data + IPV6_DESTINATION_OFFSET + 16 > end)
			return TC_ACT_OK;
		address.word[0] = *(__u32 *)(data + IPV6_DESTINATION_OFFSET);
		address.word[1] = *(__u32 *)(data + IPV6_DESTINATION_OFFSET + 4);
		address.word[2] = *(__u32 *)(data + IPV6_DESTINATION_OFFSET + 8);
		address.word[3] = *(__u32 *)(data + IPV6_DESTINATION_OFFSET + 12);
	} else {
		return TC_ACT_OK;
	}
	found = bpf_map_lookup_elem(&peers, &address);
	table = bpf_map_lookup_elem(&rate_tables, &zero);
	if (!found || !table)
		return TC_ACT_OK;
	slot = *found;
	steps = rate_table_steps(table, slot);
	locked = bpf_map_lookup_elem(&edt_flows, &slot);
	if (!locked || !steps)
		return TC_ACT_OK;

	/* wire_len counts the headers that segmentation will repeat (net/core/dev.c, qdisc_pkt_len_init). */
	segments = skb->gso_segs ? skb->gso_segs : 1;
	wire_bytes = skb->wire_len + segments * header_bytes;
	now_ns = bpf_ktime_get_ns();
	wire_ns = wire_time_ns(wire_bytes, byte_ns);
	bpf_spin_lock(&locked->lock);
	depart_ns = edt_depart(&locked->flow, now_ns, wire_ns, steps);
	bpf_spin_unlock(&locked->lock);
	skb->tstamp = depart_ns;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "GPL";
