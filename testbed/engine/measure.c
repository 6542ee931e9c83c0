// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <stdlib.h>
#include <string.h>

int measure_init(struct measure *measure, uint32_t port_count, uint32_t host_count,
		 const uint32_t *propagation_ns, uint64_t start_ns, uint64_t bucket_ns, uint64_t slot_ns)
{
	size_t cells = (size_t)port_count * MEASURE_BUCKETS;

	memset(measure, 0, sizeof(*measure));
	measure->port_count = port_count;
	measure->host_count = host_count;
	measure->propagation_ns = propagation_ns;
	measure->start_ns = start_ns;
	measure->bucket_ns = bucket_ns;
	measure->slot_ns = slot_ns;
	measure->node_capacity = 1u << 16;
	measure->node_used = 1;
	measure->slot_capacity = 1u << 16;
	measure->due_capacity = 1u << 10;
	measure->ports = calloc(port_count, sizeof(*measure->ports));
	measure->series_queue_bytes = calloc(cells, sizeof(uint64_t));
	measure->series_sent_bytes = calloc(cells, sizeof(uint64_t));
	measure->nodes = malloc(measure->node_capacity * sizeof(*measure->nodes));
	measure->slots = calloc(measure->slot_capacity, sizeof(*measure->slots));
	measure->due = malloc(measure->due_capacity * sizeof(*measure->due));
	if (!measure->ports || !measure->series_queue_bytes || !measure->series_sent_bytes ||
	    !measure->nodes || !measure->slots || !measure->due) {
		measure_free(measure);
		return -1;
	}
	return 0;
}

void measure_free(struct measure *measure)
{
	free(measure->ports);
	free(measure->series_queue_bytes);
	free(measure->series_sent_bytes);
	free(measure->nodes);
	free(measure->slots);
	free(measure->due);
	memset(measure, 0, sizeof(*measure));
}

/* ---- a pool of nodes ---- */

static uint32_t node_new(struct measure *measure, uint64_t depart_ns, uint32_t bytes)
{
	uint32_t index = measure->node_free;
	struct packet_node *node;

	if (index) {
		measure->node_free = measure->nodes[index].next;
	} else {
		if (measure->node_used == measure->node_capacity) {
			uint32_t capacity = measure->node_capacity * 2;
			void *larger = realloc(measure->nodes, (size_t)capacity * sizeof(*node));

			if (!larger)
				return 0;
			measure->nodes = larger;
			measure->node_capacity = capacity;
		}
		index = measure->node_used++;
	}
	node = &measure->nodes[index];
	node->depart_ns = depart_ns;
	node->bytes = bytes;
	node->next = 0;
	return index;
}

static void node_delete(struct measure *measure, uint32_t index)
{
	measure->nodes[index].next = measure->node_free;
	measure->node_free = index;
}

/* ---- time series ---- */

static void series_halve(struct measure *measure)
{
	for (uint32_t port = 0; port < measure->port_count; port++) {
		uint64_t *queue = measure->series_queue_bytes + (size_t)port * MEASURE_BUCKETS;
		uint64_t *sent = measure->series_sent_bytes + (size_t)port * MEASURE_BUCKETS;

		for (uint32_t i = 0; i < MEASURE_BUCKETS / 2; i++) {
			uint64_t a = queue[2 * i], b = queue[2 * i + 1];

			queue[i] = a > b ? a : b;
			sent[i] = sent[2 * i] + sent[2 * i + 1];
		}
		memset(queue + MEASURE_BUCKETS / 2, 0, MEASURE_BUCKETS / 2 * sizeof(*queue));
		memset(sent + MEASURE_BUCKETS / 2, 0, MEASURE_BUCKETS / 2 * sizeof(*sent));
		measure->ports[port].bucket /= 2;
	}
	measure->bucket_ns *= 2;
}

/* Moves a port's series on to time_ns; the buckets between hold the queue as it stood. */
static uint64_t *series_reach(struct measure *measure, uint32_t port, uint64_t time_ns)
{
	struct port_measure *state = &measure->ports[port];
	uint64_t since_ns = time_ns > measure->start_ns ? time_ns - measure->start_ns : 0;
	uint64_t *queue;
	uint32_t target;

	while (since_ns / measure->bucket_ns >= MEASURE_BUCKETS)
		series_halve(measure);
	target = (uint32_t)(since_ns / measure->bucket_ns);
	queue = measure->series_queue_bytes + (size_t)port * MEASURE_BUCKETS;
	while (state->bucket < target)
		queue[++state->bucket] = state->queue_bytes;
	return queue + state->bucket;
}

/* ---- one port ---- */

static void port_leave(struct measure *measure, uint32_t port, uint64_t until_ns)
{
	struct port_measure *state = &measure->ports[port];

	while (state->head && measure->nodes[state->head].depart_ns <= until_ns) {
		uint32_t index = state->head;
		struct packet_node node = measure->nodes[index];

		series_reach(measure, port, node.depart_ns);
		measure->series_sent_bytes[(size_t)port * MEASURE_BUCKETS + state->bucket] += node.bytes;
		state->queue_bytes -= node.bytes;
		state->head = node.next;
		if (!state->head)
			state->tail = 0;
		node_delete(measure, index);
	}
}

static int port_accept(struct measure *measure, uint32_t port, uint64_t arrival_ns, uint64_t depart_ns,
		       uint32_t bytes)
{
	struct port_measure *state = &measure->ports[port];
	uint64_t *cell;
	uint32_t index;

	port_leave(measure, port, arrival_ns);
	index = node_new(measure, depart_ns, bytes);
	if (!index)
		return -1;
	cell = series_reach(measure, port, arrival_ns);
	if (state->tail)
		measure->nodes[state->tail].next = index;
	else
		state->head = index;
	state->tail = index;
	state->queue_bytes += bytes;
	if (state->queue_bytes > *cell)
		*cell = state->queue_bytes;
	if (state->queue_bytes > state->max_queue_bytes)
		state->max_queue_bytes = state->queue_bytes;
	return 0;
}

/* ---- all switch ports together ---- */

static int latest_first(const void *a, const void *b)
{
	const struct packet_node *x = a, *y = b;

	return x->depart_ns < y->depart_ns ? 1 : x->depart_ns > y->depart_ns ? -1 : 0;
}

static int due_reserve(struct measure *measure)
{
	void *larger;

	if (measure->due_count < measure->due_capacity)
		return 0;
	larger = realloc(measure->due, (size_t)measure->due_capacity * 2 * sizeof(*measure->due));
	if (!larger)
		return -1;
	measure->due = larger;
	measure->due_capacity *= 2;
	return 0;
}

static int total_leave(struct measure *measure, uint64_t until_ns)
{
	uint64_t target = (until_ns - measure->start_ns) / measure->slot_ns;

	for (;;) {
		while (measure->due_count && measure->due[measure->due_count - 1].depart_ns <= until_ns)
			measure->total_bytes -= measure->due[--measure->due_count].bytes;
		if (measure->slot >= target)
			return 0;
		measure->slot++;
		if (measure->slot >= measure->slot_capacity)
			continue;
		for (uint32_t index = measure->slots[measure->slot]; index;) {
			uint32_t next = measure->nodes[index].next;

			if (due_reserve(measure))
				return -1;
			measure->due[measure->due_count++] = measure->nodes[index];
			node_delete(measure, index);
			index = next;
		}
		measure->slots[measure->slot] = 0;
		if (measure->due_count > 1)
			qsort(measure->due, measure->due_count, sizeof(*measure->due), latest_first);
	}
}

static int total_accept(struct measure *measure, uint64_t arrival_ns, uint64_t depart_ns, uint32_t bytes)
{
	uint64_t slot = (depart_ns - measure->start_ns) / measure->slot_ns;

	if (total_leave(measure, arrival_ns))
		return -1;
	measure->total_bytes += bytes;
	if (measure->total_bytes > measure->max_total_bytes)
		measure->max_total_bytes = measure->total_bytes;
	if (slot > measure->slot) {
		uint32_t index;

		if (slot >= measure->slot_capacity) {
			uint64_t capacity = slot + slot / 2;
			uint32_t *larger = realloc(measure->slots, capacity * sizeof(*larger));

			if (!larger)
				return -1;
			memset(larger + measure->slot_capacity, 0,
			       (capacity - measure->slot_capacity) * sizeof(*larger));
			measure->slots = larger;
			measure->slot_capacity = capacity;
		}
		index = node_new(measure, depart_ns, bytes);
		if (!index)
			return -1;
		measure->nodes[index].next = measure->slots[slot];
		measure->slots[slot] = index;
	} else { /* departs within the slot that time is in: keep the order */
		uint32_t i;

		if (due_reserve(measure))
			return -1;
		for (i = measure->due_count++; i && measure->due[i - 1].depart_ns < depart_ns; i--)
			measure->due[i] = measure->due[i - 1];
		measure->due[i] = (struct packet_node){.depart_ns = depart_ns, .bytes = bytes};
	}
	return 0;
}

int measure_record(struct measure *measure, const struct record *record)
{
	uint64_t depart_ns = record->far_end_ns - measure->propagation_ns[record->port];

	/* NICs are written ahead of time, so that they have no place in the order of the switches. */
	if (record->port >= measure->host_count &&
	    total_accept(measure, record->arrival_ns, depart_ns, record->wire_bytes))
		return -1;
	return port_accept(measure, record->port, record->arrival_ns, depart_ns, record->wire_bytes);
}

void measure_finish(struct measure *measure, uint64_t end_ns)
{
	for (uint32_t port = 0; port < measure->port_count; port++) {
		port_leave(measure, port, UINT64_MAX);
		series_reach(measure, port, end_ns);
	}
}
