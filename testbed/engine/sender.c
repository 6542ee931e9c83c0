// SPDX-License-Identifier: Apache-2.0
#include "sender.h"

#include <stddef.h>

#include "frame.h"
#include "wire_time.h"

/* Departure of the flow's next packet by the NIC's clock, which `clock` is moved over. */
static uint64_t depart(const struct sender *sender, const struct flow_state *flow, struct edt_flow *clock)
{
	uint64_t wire_ns = wire_time_ns(flow_next_bytes(flow), sender->byte_ns);

	return edt_depart(clock, flow->ready_ns, wire_ns, flow->steps);
}

static uint64_t foresee(const struct sender *sender, const struct flow_state *flow)
{
	struct edt_flow clock = flow->clock;

	return depart(sender, flow, &clock);
}

/* ---- heap of paced flows ---- */

static int earlier(struct heap_entry a, struct heap_entry b)
{
	return a.next_ns != b.next_ns ? a.next_ns < b.next_ns : a.flow < b.flow;
}

static void put(struct sender *sender, uint32_t i, struct heap_entry entry)
{
	sender->heap[i] = entry;
	sender->places[entry.flow] = i;
}

static void sift_down(struct sender *sender, uint32_t i)
{
	struct heap_entry *heap = sender->heap, moving = heap[i];

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= sender->waiting)
			break;
		if (child + 1 < sender->waiting && earlier(heap[child + 1], heap[child]))
			child++;
		if (!earlier(heap[child], moving))
			break;
		put(sender, i, heap[child]);
		i = child;
	}
	put(sender, i, moving);
}

static void sift_up(struct sender *sender, uint32_t i)
{
	struct heap_entry moving = sender->heap[i];

	for (; i && earlier(moving, sender->heap[(i - 1) / 2]); i = (i - 1) / 2)
		put(sender, i, sender->heap[(i - 1) / 2]);
	put(sender, i, moving);
}

static void heap_remove_first(struct sender *sender)
{
	if (--sender->waiting) {
		sender->heap[0] = sender->heap[sender->waiting];
		sift_down(sender, 0);
	}
}

/* ---- all disciplines ---- */

static bool by_clock(const struct sender *sender)
{
	return sender->discipline == PACED || sender->discipline == SELF_PACED;
}

static uint32_t index_of(const struct sender *sender, const struct flow_state *flow)
{
	return (uint32_t)(flow - sender->flows);
}

static void append(struct sender *sender, uint32_t index)
{
	uint32_t at = sender->first + sender->waiting++;

	sender->list[at < sender->count ? at : at - sender->count] = index;
}

static void enter(struct sender *sender, struct flow_state *flow, uint64_t now_ns)
{
	flow->waiting = true;
	if (now_ns > flow->ready_ns)
		flow->ready_ns = now_ns;
	if (!by_clock(sender)) {
		append(sender, index_of(sender, flow));
		return;
	}
	sender->heap[sender->waiting] =
		(struct heap_entry){.next_ns = foresee(sender, flow), .flow = index_of(sender, flow)};
	sift_up(sender, sender->waiting++);
}

void sender_init(struct sender *sender, enum discipline discipline, struct flow_state *flows, uint32_t count,
		 uint64_t byte_ns, uint32_t *list_storage, uint32_t *place_storage,
		 struct heap_entry *heap_storage)
{
	*sender = (struct sender){
		.discipline = discipline,
		.byte_ns = byte_ns,
		.count = count,
		.flows = flows,
		.list = list_storage,
		.places = place_storage,
		.heap = heap_storage,
	};
	if (discipline == STAGED)
		return;
	for (uint32_t i = 0; i < count; i++)
		if (flow_may_send(&flows[i]))
			enter(sender, &flows[i], 0);
}

/* Whether a flow may send in its turn. In stages only what is lost does, until all stages have been sent. */
static bool takes_turns(const struct sender *sender, const struct flow_state *flow)
{
	return flow_may_send(flow) &&
	       (sender->discipline != STAGED || flow->lost || sender->stage == sender->stage_count);
}

/* Goes on to the first stage of which something is to be sent. */
static void seek_stage(struct sender *sender)
{
	if (sender->discipline != STAGED || sender->stage == sender->stage_count)
		return;
	while (sender->stage < sender->stage_count &&
	       sender->flows[sender->stages[sender->stage].flow].next >=
		       sender->stages[sender->stage].packets)
		sender->stage++;
	if (sender->stage < sender->stage_count)
		return;
	for (uint32_t i = 0; i < sender->count; i++)
		if (!sender->flows[i].waiting && takes_turns(sender, &sender->flows[i]))
			enter(sender, &sender->flows[i], 0);
}

void sender_set_stages(struct sender *sender, const struct sender_stage *stages, uint32_t count,
		       uint32_t open)
{
	sender->stages = stages;
	sender->stage_count = count;
	sender->stage = 0;
	sender->open_stages = open;
	/* Without any, what there is goes in turn from the start. */
	for (uint32_t i = 0; !count && i < sender->count; i++)
		if (takes_turns(sender, &sender->flows[i]))
			enter(sender, &sender->flows[i], 0);
	seek_stage(sender);
}

void sender_open_stages(struct sender *sender, uint32_t open, uint64_t now_ns)
{
	sender->open_stages = open;
	sender->opened_ns = now_ns;
}

void sender_update(struct sender *sender, struct flow_state *flow, uint64_t now_ns)
{
	struct heap_entry *entry;
	uint64_t due_ns;
	uint32_t place;

	if (!flow->waiting) {
		if (takes_turns(sender, flow))
			enter(sender, flow, now_ns);
		if (flow->blocked && flow_may_send(flow)) { /* nothing leaves before its window has opened */
			flow->blocked = false;
			if (now_ns > flow->ready_ns)
				flow->ready_ns = now_ns;
		}
		return;
	}
	if (!by_clock(sender) || !flow_may_send(flow))
		return; /* what may no longer send leaves when its turn comes */
	place = sender->places[index_of(sender, flow)];
	entry = &sender->heap[place];
	/* A higher rate does not reach back: what was not due before becomes so now, and the clock goes on
	 * from here. */
	due_ns = entry->next_ns < now_ns ? entry->next_ns : now_ns;
	entry->next_ns = foresee(sender, flow);
	if (entry->next_ns < due_ns) {
		flow->clock.departed_ns += due_ns - entry->next_ns;
		entry->next_ns = due_ns;
	}
	sift_up(sender, place);
	sift_down(sender, sender->places[index_of(sender, flow)]);
}

static void remove_first(struct sender *sender)
{
	sender->waiting--;
	sender->first = sender->first + 1 == sender->count ? 0 : sender->first + 1;
	sender->in_turn = false;
}

/* Whether the first of the list may send in this turn. */
static bool has_credit(struct sender *sender, const struct flow_state *flow)
{
	uint32_t *deficit = &sender->places[sender->list[sender->first]];

	if (!sender->in_turn)
		*deficit += flow->quantum_bytes;
	sender->in_turn = true;
	return *deficit >= flow_next_bytes(flow);
}

/* The flow of the stage that is being sent, NULL if it may not send. */
static struct flow_state *staged_flow(struct sender *sender)
{
	const struct sender_stage *stage = &sender->stages[sender->stage];
	struct flow_state *flow;

	if (sender->stage == sender->stage_count || stage->number >= sender->open_stages)
		return NULL;
	flow = &sender->flows[stage->flow];
	if (flow->lost)
		return NULL;
	flow->blocked = !flow_may_send(flow);
	return flow->blocked ? NULL : flow;
}

/* The flow whose turn it is, NULL if there is none. */
static struct flow_state *next_flow(struct sender *sender)
{
	while (sender->waiting) {
		struct flow_state *flow =
			&sender->flows[by_clock(sender) ? sender->heap[0].flow : sender->list[sender->first]];

		if (takes_turns(sender, flow)) {
			if (sender->discipline != DEFICIT || has_credit(sender, flow))
				return flow;
			remove_first(sender);
			append(sender, index_of(sender, flow));
			continue;
		}
		flow->waiting = false;
		if (by_clock(sender)) {
			heap_remove_first(sender);
			continue;
		}
		if (sender->discipline == DEFICIT)
			sender->places[index_of(sender, flow)] = 0;
		remove_first(sender);
	}
	return sender->discipline == STAGED ? staged_flow(sender) : NULL;
}

/* ---- background flows ---- */

/* When the flow's next packet is due. */
static void background_foresee(const struct sender *sender, struct background *flow)
{
	uint64_t wire_ns = wire_time_ns(background_bytes(flow), sender->byte_ns);

	flow->next_ns = edt_depart(&flow->clock, flow->next_ns, wire_ns, flow->given.steps);
}

void sender_add_background(struct sender *sender, struct background *flows, uint32_t count)
{
	sender->background = flows;
	sender->background_count = count;
	for (uint32_t i = 0; i < count; i++)
		background_foresee(sender, &flows[i]);
}

void sender_stop_background(struct sender *sender)
{
	sender->background_count = 0;
}

/* The one that is due first, NULL if none has anything left. */
static struct background *next_background(const struct sender *sender)
{
	struct background *found = NULL;

	for (uint32_t i = 0; i < sender->background_count; i++) {
		struct background *flow = &sender->background[i];

		if (flow->next < flow->given.packets && (!found || flow->next_ns < found->next_ns))
			found = flow;
	}
	return found;
}

static void background_take(struct sender *sender, struct background *flow, struct packet *packet)
{
	uint64_t start_ns = flow->next_ns > sender->clear_ns ? flow->next_ns : sender->clear_ns;

	*packet = (struct packet){
		.source = flow->given.source,
		.destination = flow->given.destination,
		.psn = BACKGROUND_PSN | (flow->given.first_psn + flow->next),
		.wire_bytes = background_bytes(flow),
		.number = flow->next,
		.ready_ns = flow->next_ns,
		.flags = TRANSPORT_BACKGROUND,
		.copy = 1,
		.spread = BACKGROUND_SPREAD | flow->number,
	};
	sender->clear_ns = start_ns + wire_time_ns(packet->wire_bytes, sender->byte_ns);
	if (++flow->next < flow->given.packets)
		background_foresee(sender, flow);
}

/* ---- what is next ---- */

/* When the next packet of a flow comes to the port. A paced one comes when it is due, whether the port is
 * free or not; in round robin the port takes one when it is free.
 */
static uint64_t flow_arrival_ns(struct sender *sender)
{
	const struct flow_state *flow = next_flow(sender);
	uint64_t ready_ns;

	if (!flow)
		return UINT64_MAX;
	if (by_clock(sender))
		return sender->heap[0].next_ns;
	ready_ns = flow->ready_ns;
	if (sender->discipline == STAGED && !flow->waiting) {
		if (ready_ns < sender->opened_ns)
			ready_ns = sender->opened_ns;
		if (ready_ns < sender->stages[sender->stage].start_ns)
			ready_ns = sender->stages[sender->stage].start_ns;
	}
	return ready_ns > sender->clear_ns ? ready_ns : sender->clear_ns;
}

/* First come, first served. */
static struct background *background_first(struct sender *sender, uint64_t arrival_ns)
{
	struct background *flow = sender->background_count ? next_background(sender) : NULL;

	return flow && flow->next_ns <= arrival_ns ? flow : NULL;
}

uint64_t sender_next_ns(struct sender *sender)
{
	uint64_t next_ns = flow_arrival_ns(sender);
	const struct background *other = background_first(sender, next_ns);

	if (other)
		next_ns = other->next_ns;
	return next_ns > sender->clear_ns ? next_ns : sender->clear_ns;
}

struct flow_state *sender_take(struct sender *sender, struct transport *transport, struct packet *packet)
{
	struct background *other = background_first(sender, flow_arrival_ns(sender));
	uint64_t start_ns = sender_next_ns(sender);
	struct flow_state *flow;

	if (other) {
		background_take(sender, other, packet);
		return NULL;
	}
	flow = next_flow(sender);
	packet->wire_bytes = flow_next_bytes(flow);
	packet->source = flow->source;
	packet->destination = packet->spread = flow->destination;
	/* A paced packet is ready when its flow was, and the NIC's clock says when it leaves. */
	packet->ready_ns = sender->discipline == PACED ? flow->ready_ns : start_ns;
	packet->number = flow->transmissions++;
	if (by_clock(sender))
		depart(sender, flow, &flow->clock);
	sender->clear_ns = start_ns + wire_time_ns(packet->wire_bytes, sender->byte_ns);
	packet->psn = transport_send(transport, flow, start_ns, &packet->flags, &packet->copy);

	if (by_clock(sender)) {
		if (flow_may_send(flow)) {
			sender->heap[0].next_ns = foresee(sender, flow);
			sift_down(sender, 0);
		} else {
			flow->waiting = false;
			heap_remove_first(sender);
		}
		return flow;
	}
	if (!flow->waiting) { /* of a stage */
		/* The flow may pause for long after a stage: its receiver must not keep an answer until then.
		 */
		if (flow->next == sender->stages[sender->stage].packets && !flow->open_loop)
			packet->flags |= TRANSPORT_ACK_REQUEST;
		seek_stage(sender);
		return flow;
	}
	if (sender->discipline == DEFICIT) {
		uint32_t *deficit = &sender->places[index_of(sender, flow)];

		*deficit -= packet->wire_bytes;
		if (flow_may_send(flow) && *deficit >= flow_next_bytes(flow))
			return flow;
		if (!flow_may_send(flow))
			*deficit = 0;
	}
	remove_first(sender);
	if (takes_turns(sender, flow))
		append(sender, index_of(sender, flow));
	else
		flow->waiting = false;
	return flow;
}
