/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and link use, measured exactly from the records that the fabric writes: one for each packet that
 * a port accepted, with its arrival at the port and the time at which it will be at the far end.
 *
 * A port's queue is what it accepted and has not yet fully serialised, the packet in service counted
 * whole, read just after an arrival. A packet that departs at the instant of an arrival has left.
 */
#ifndef INCASTFREE_MEASURE_H
#define INCASTFREE_MEASURE_H

#include <stdint.h>

#include "fabric.h"

#define MEASURE_BUCKETS 1024

struct packet_node {
	uint64_t depart_ns;
	uint32_t next; /* node; 0 is none */
	uint32_t bytes;
};

struct port_measure {
	uint64_t queue_bytes, max_queue_bytes;
	uint32_t head, tail; /* accepted and not yet known to have left, oldest first */
	uint32_t bucket; /* of the time series, reached so far */
};

struct measure {
	uint32_t port_count, host_count;
	uint64_t start_ns; /* of the time series */
	uint64_t bucket_ns; /* doubles when the series would overflow */
	struct port_measure *ports;
	const uint32_t *propagation_ns;
	uint64_t *series_queue_bytes; /* port_count x MEASURE_BUCKETS: deepest queue in the bucket */
	uint64_t *series_sent_bytes; /* and bytes whose serialisation ended in it */

	struct packet_node *nodes;
	uint32_t node_capacity, node_free, node_used;

	/* Sum over all switch ports: a calendar of departures, sorted bucket by bucket as time enters it. */
	uint64_t total_bytes, max_total_bytes;
	uint64_t slot_ns, slot, slot_capacity;
	uint32_t *slots; /* lists of nodes */
	struct packet_node *due; /* the entered slot's departures, latest first */
	uint32_t due_count, due_capacity;
};

/* 0, or -1 without memory. propagation_ns has port_count entries; bucket_ns is the first width of the
 * series' buckets and slot_ns that of the calendar's, about a packet time.
 */
int measure_init(struct measure *measure, uint32_t port_count, uint32_t host_count,
		 const uint32_t *propagation_ns, uint64_t start_ns, uint64_t bucket_ns, uint64_t slot_ns);
void measure_free(struct measure *measure);
/* The fabric's records in their order. 0, or -1 without memory. */
int measure_record(struct measure *measure, const struct record *record);
/* Lets every packet leave that was accepted, and fills the series up to end_ns. */
void measure_finish(struct measure *measure, uint64_t end_ns);

#endif
