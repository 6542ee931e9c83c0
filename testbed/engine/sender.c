// SPDX-License-Identifier: Apache-2.0
#include "sender.h"

#include <stdbool.h>

#include "wire_time.h"

static uint32_t next_bytes(const struct sender *sender, const struct sender_flow *flow)
{
	return flow->sent + 1 == flow->flow->packets ? flow->flow->last_bytes : sender->mtu_bytes;
}

/* Moves the flow's clock over its next packet, as the NIC will. */
static void foresee(const struct sender *sender, struct sender_flow *flow)
{
	uint64_t wire_ns = wire_time_ns(next_bytes(sender, flow), sender->byte_ns);

	flow->next_ns = edt_depart(&flow->clock, flow->ready_ns, wire_ns, flow->flow->steps);
}

/* ---- heap of paced flows ---- */

static int earlier(struct heap_entry a, struct heap_entry b)
{
	return a.next_ns != b.next_ns ? a.next_ns < b.next_ns : a.flow < b.flow;
}

static void sift_down(struct sender *sender, uint32_t i)
{
	struct heap_entry *heap = sender->heap, moving = heap[i];

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= sender->active)
			break;
		if (child + 1 < sender->active && earlier(heap[child + 1], heap[child]))
			child++;
		if (!earlier(heap[child], moving))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = moving;
}

void sender_init(struct sender *sender, enum discipline discipline, const struct flow *flows, uint32_t count,
		 uint64_t start_ns, uint64_t byte_ns, uint32_t mtu_bytes, struct sender_flow *flow_storage,
		 struct heap_entry *heap_storage)
{
	*sender = (struct sender){
		.discipline = discipline,
		.byte_ns = byte_ns,
		.mtu_bytes = mtu_bytes,
		.flows = flow_storage,
		.active = count,
		.previous = count ? count - 1 : 0,
		.heap = heap_storage,
	};
	for (uint32_t i = 0; i < count; i++) {
		flow_storage[i] = (struct sender_flow){
			.flow = &flows[i],
			.ready_ns = start_ns + flows[i].ready_ns,
			.next = (i + 1) % count,
		};
		foresee(sender, &flow_storage[i]);
		heap_storage[i] = (struct heap_entry){.next_ns = flow_storage[i].next_ns, .flow = i};
	}
	if (discipline == PACED)
		for (uint32_t i = count / 2; i-- > 0;)
			sift_down(sender, i);
}

static struct sender_flow *next_flow(const struct sender *sender)
{
	return &sender->flows[sender->discipline == PACED ? sender->heap[0].flow : sender->turn];
}

uint64_t sender_next_ns(const struct sender *sender)
{
	uint64_t next_ns;

	if (!sender->active)
		return UINT64_MAX;
	next_ns = sender->discipline == PACED ? sender->heap[0].next_ns : sender->flows[sender->turn].next_ns;
	return next_ns > sender->clear_ns ? next_ns : sender->clear_ns;
}

void sender_take(struct sender *sender, struct packet *packet)
{
	struct sender_flow *flow = next_flow(sender);
	uint32_t bytes = next_bytes(sender, flow);
	bool last;

	*packet = (struct packet){
		.source = flow->flow->source,
		.destination = flow->flow->destination,
		.psn = flow->sent,
		.wire_bytes = bytes,
		.ready_ns = flow->ready_ns,
	};
	sender->clear_ns = sender_next_ns(sender) + wire_time_ns(bytes, sender->byte_ns);
	last = ++flow->sent == flow->flow->packets;
	if (!last)
		foresee(sender, flow);

	if (sender->discipline == PACED) {
		sender->heap[0].next_ns = flow->next_ns;
		if (last)
			sender->heap[0] = sender->heap[--sender->active];
		if (sender->active)
			sift_down(sender, 0);
		return;
	}
	if (last) {
		sender->flows[sender->previous].next = flow->next;
		sender->active--;
	} else {
		sender->previous = sender->turn;
	}
	sender->turn = flow->next;
}
