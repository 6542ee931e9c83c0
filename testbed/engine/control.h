/* SPDX-License-Identifier: Apache-2.0 */
/* The flows' congestion controls: Python objects (testbed/engine/cca/), called once an ACK. */
#ifndef INCASTFREE_CONTROL_H
#define INCASTFREE_CONTROL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

enum control_kind {
	CONTROL_NONE,
	CONTROL_WINDOW, /* it answers with a window in bytes */
	CONTROL_RATE, /* or with a rate in bits a second */
};

struct controls {
	enum control_kind kind;
	double dilation; /* kernel time over fabric time */
	uint64_t epoch_ns;
	PyObject *objects; /* a list with one a flow; borrowed */
	bool calls_on_sent;
	PyObject *on_ack, *on_nack, *on_timeout, *on_sent; /* names of the methods */
};

/* objects: a list with one control a flow, or None; calls_on_sent: they want to hear of every packet. 0, or
 * -1 with an exception. */
int controls_init(struct controls *controls, enum control_kind kind, double dilation, PyObject *objects,
		  bool calls_on_sent);
void controls_free(struct controls *controls);
/* The answers, -1 with an exception. in_flight_bytes is read from the flow. */
double control_on_ack(struct controls *controls, size_t index, const struct flow_state *flow, uint64_t now_ns,
		      const struct news *news);
double control_on_nack(struct controls *controls, size_t index, const struct flow_state *flow,
		       uint64_t now_ns, const struct news *news);
double control_on_timeout(struct controls *controls, size_t index, const struct flow_state *flow,
			  uint64_t now_ns, uint32_t bytes);
/* The same, for controls that want to hear of packets that were sent; -2 where nothing is to change. */
double control_on_sent(struct controls *controls, size_t index, const struct flow_state *flow,
		       uint64_t now_ns, uint32_t bytes);

#endif
