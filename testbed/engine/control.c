// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <math.h>

int controls_init(struct controls *controls, enum control_kind kind, double dilation, PyObject *objects,
		  bool calls_on_sent)
{
	controls->kind = kind;
	controls->dilation = dilation;
	if (kind == CONTROL_NONE)
		return 0;
	if (!PyList_Check(objects)) {
		PyErr_SetString(PyExc_TypeError, "controls must be a list");
		return -1;
	}
	controls->count = (size_t)PyList_GET_SIZE(objects);
	controls->of = PyMem_Calloc(controls->count + 1, sizeof(*controls->of));
	if (!controls->of) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < controls->count; i++) {
		PyObject *object = PyList_GET_ITEM(objects, (Py_ssize_t)i);
		struct control *control = &controls->of[i];

		control->on_ack = PyObject_GetAttrString(object, "on_ack");
		control->on_nack = PyObject_GetAttrString(object, "on_nack");
		control->on_timeout = PyObject_GetAttrString(object, "on_timeout");
		if (!control->on_ack || !control->on_nack || !control->on_timeout)
			return -1;
		if (calls_on_sent && !(control->on_sent = PyObject_GetAttrString(object, "on_sent")))
			return -1;
	}
	return 0;
}

void controls_free(struct controls *controls)
{
	for (size_t i = 0; controls->of && i < controls->count; i++) {
		Py_XDECREF(controls->of[i].on_ack);
		Py_XDECREF(controls->of[i].on_nack);
		Py_XDECREF(controls->of[i].on_timeout);
		Py_XDECREF(controls->of[i].on_sent);
	}
	PyMem_Free(controls->of);
}

static PyObject *fabric_time(const struct controls *controls, uint64_t kernel_ns)
{
	return PyFloat_FromDouble((double)kernel_ns / controls->dilation);
}

static PyObject *since_start(const struct controls *controls, uint64_t now_ns)
{
	return PyFloat_FromDouble((double)(int64_t)(now_ns - controls->epoch_ns) / controls->dilation);
}

static PyObject *in_flight(const struct flow_state *flow)
{
	return PyLong_FromLongLong(flow->in_flight_bytes > 0 ? flow->in_flight_bytes : 0);
}

/* Calls with arguments that it takes over. */
static double ask(PyObject *method, PyObject **arguments, size_t count, bool may_be_none)
{
	PyObject *answer = NULL;
	double value = -1;
	bool complete = true;

	for (size_t i = 0; i < count; i++)
		complete = complete && arguments[i];
	if (complete)
		answer = PyObject_Vectorcall(method, arguments, count, NULL);
	for (size_t i = 0; i < count; i++)
		Py_XDECREF(arguments[i]);
	if (!answer)
		return -1;
	if (may_be_none && answer == Py_None) {
		value = -2;
	} else {
		value = PyFloat_AsDouble(answer);
		if (!PyErr_Occurred() && !(value >= 0 && isfinite(value)))
			PyErr_Format(PyExc_ValueError, "%R returned %R: neither a window nor a rate", method,
				     answer);
	}
	Py_DECREF(answer);
	return PyErr_Occurred() ? -1 : value;
}

double control_on_ack(struct controls *controls, size_t index, const struct flow_state *flow, uint64_t now_ns,
		      const struct news *news)
{
	PyObject *arguments[] = {
		since_start(controls, now_ns),
		PyLong_FromLong((long)news->newly_bytes),
		fabric_time(controls, news->rtt_ns),
		PyBool_FromLong(news->marked),
		in_flight(flow),
	};

	return ask(controls->of[index].on_ack, arguments, 5, false);
}

double control_on_nack(struct controls *controls, size_t index, const struct flow_state *flow,
		       uint64_t now_ns, const struct news *news)
{
	PyObject *arguments[] = {
		since_start(controls, now_ns),
		PyLong_FromLong((long)news->lost_bytes),
		fabric_time(controls, news->rtt_ns),
		in_flight(flow),
	};

	return ask(controls->of[index].on_nack, arguments, 4, false);
}

double control_on_timeout(struct controls *controls, size_t index, const struct flow_state *flow,
			  uint64_t now_ns, uint32_t bytes)
{
	PyObject *arguments[] = {since_start(controls, now_ns), PyLong_FromLong((long)bytes),
				 in_flight(flow)};

	return ask(controls->of[index].on_timeout, arguments, 3, false);
}

double control_on_sent(struct controls *controls, size_t index, const struct flow_state *flow,
		       uint64_t now_ns, uint32_t bytes)
{
	PyObject *arguments[] = {since_start(controls, now_ns), PyLong_FromLong((long)bytes),
				 in_flight(flow)};

	return ask(controls->of[index].on_sent, arguments, 3, true);
}
