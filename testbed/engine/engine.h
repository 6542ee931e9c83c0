/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: one process that sends for all hosts, and measures.
 *
 * It wakes once a period, a little before the period that it is about to act for, offers every NIC what
 * leaves it in that period, and reads what the fabric recorded since. Frames carry the time at which they are
 * ready, so that nothing depends on when exactly the engine wakes: in virtual time it is only ever early.
 *
 * The fabric notes an ACK when it enters the last link to its host, and so the engine knows of every ACK of
 * a period before it begins, if no such link is shorter than the period and the lead together: each host's
 * ACKs and packets then take effect in their order, to the nanosecond (a conservative lookahead, as in
 * parallel simulation). Where a link is shorter, an ACK takes effect up to a period late.
 */
#ifndef INCASTFREE_ENGINE_H
#define INCASTFREE_ENGINE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "control.h"
#include "dpus.h"
#include "entropy.h"
#include "events.h"
#include "fabric.h"
#include "inject.h"
#include "measure.h"
#include "reps.h"
#include "sender.h"
#include "transport.h"

#define MAX_SOCKETS 64

/* A feedback that has been read and not yet acted on. */
struct pending {
	struct feedback feedback;
	uint32_t next, previous; /* of the same host, by arrival; 0 is none */
};

struct queue {
	uint32_t head, tail;
};

struct engine {
	/* From Python. */
	Py_buffer flows, stages, background, mailbox, byte_ns, start_ns, propagation_ns, windows, head,
		records, ports, feedback;
	uint32_t host_count, port_count, mtu_bytes, seed;
	enum discipline discipline;
	enum balancing balancing;
	uint64_t period_ns, lead_ns, limit_ns, bucket_ns, slot_ns;
	uint64_t rates_ns; /* after the start: when the schedule's rates come into force; 0: from the start */
	bool barrier; /* a stage begins when all before it have come everywhere, and so long after that: */
	uint64_t barrier_ns;
	uint64_t freeze_ns; /* REPS: so long after a timeout known values only */
	uint64_t linger_ns; /* so long may a packet be where no record tells of it */
	bool late_records; /* they come when packets leave a port, and while the engine reads them */
	double dilation;
	int ifindex, sockets, progress_fd, trace_fd, events_fd;
	/* Its own. */
	uint64_t epoch_ns; /* the common start */
	uint64_t expected_packets, sent_packets, packet_hops, last_far_end_ns;
	uint64_t delivered_before, came_before;
	uint64_t time_ns; /* of what is being acted on */
	uint64_t heard; /* ACKs and NACKs */
	uint32_t flow_count, done_flows;
	uint64_t background_packets, background_sent;
	uint64_t records_taken, feedback_taken; /* of what the fabric has written */
	struct record *kept; /* late records, until all are there */
	size_t kept_count, kept_capacity;
	uint32_t turn; /* of the flows whose timers are looked at */
	struct sender *senders;
	struct flow_state *flow_storage;
	struct background *background_storage;
	struct sender_stage *stage_storage;
	uint64_t *stage_ends; /* packets that have come in all when a stage is over, by its number */
	uint32_t stage_numbers, open_stages;
	uint32_t *list_storage, *place_storage;
	struct heap_entry *heap_storage;
	uint32_t *flow_of; /* host_count x host_count: its place in flow_storage */
	struct reps *reps; /* one a flow; NULL with any other balancing */
	struct transport transport;
	struct controls controls;
	struct dpus dpus;
	struct pending *pending;
	uint32_t pending_free, pending_used, pending_capacity;
	struct queue *arriving; /* one a host */
	struct inject *inject;
	struct events *events; /* of a run that is traced; else NULL */
	struct measure measure;
};

static inline struct record_head *engine_head(const struct engine *engine)
{
	return engine->head.buf;
}

/* Packets of the phase that have arrived. */
static inline uint64_t engine_delivered(const struct engine *engine)
{
	return engine_head(engine)->delivered_packets - engine->delivered_before;
}

/* How many entries of a ring are taken, `written` of them now. While virtual time stands still nobody writes,
 * and the ring starts anew each time, so that what is in use of it stays in the processor's cache.
 */
static inline uint64_t engine_take(const struct engine *engine, __u64 *counter, uint64_t written)
{
	if (engine->late_records)
		return written;
	*counter = 0;
	return 0;
}

static inline size_t engine_index_of(const struct engine *engine, const struct flow_state *flow)
{
	return (size_t)(flow - engine->flow_storage);
}

static inline bool engine_has_transport(const struct engine *engine)
{
	return engine->transport.recovery != RECOVERY_NONE;
}

/* With what came from Python in place: makes the rest. 0, or -1 with an exception. */
int engine_prepare(struct engine *engine);
/* Sends and measures until all is done. 0, or -1 with an exception. */
int engine_drive(struct engine *engine);
/* Measures what was kept until all had come. 0, or -1 with an exception. */
int engine_finish(struct engine *engine);
/* Frees what engine_prepare made, whole or in part. */
void engine_free(struct engine *engine);

#endif
