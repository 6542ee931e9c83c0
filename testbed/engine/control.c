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
	controls->objects = objects;
	controls->calls_on_sent = calls_on_sent;
	controls->on_ack = PyUnicode_InternFromString("on_ack");
	controls->on_nack = PyUnicode_InternFromString("on_nack");
	controls->on_timeout = PyUnicode_InternFromString("on_timeout");
	controls->on_sent = PyUnicode_InternFromString("on_sent");
	return controls->on_ack && controls->on_nack && controls->on_timeout && controls->on_sent ? 0 : -1;
}

void controls_free(struct controls *controls)
{
	Py_XDECREF(controls->on_ack);
	Py_XDECREF(controls->on_nack);
	Py_XDECREF(controls->on_timeout);
	Py_XDECREF(controls->on_sent);
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

/* Calls a method of a flow's control. arguments[0] is left free for the control; the others are taken over.
 * By name, and not as a bound method that is kept: those of a quarter of a million flows would fill the
 * memory.
 */
static double ask(const struct controls *controls, size_t index, PyObject *name, PyObject **arguments,
		  size_t count, bool may_be_none)
{
	PyObject *answer = NULL;
	double value = -1;
	bool complete = true;

	arguments[0] = PyList_GET_ITEM(controls->objects, (Py_ssize_t)index);
	for (size_t i = 1; i < count; i++)
		complete = complete && arguments[i];
	if (complete)
		answer = PyObject_VectorcallMethod(name, arguments, count, NULL);
	for (size_t i = 1; i < count; i++)
		Py_XDECREF(arguments[i]);
	if (!answer)
		return -1;
	if (may_be_none && answer == Py_None) {
		value = -2;
	} else {
		value = PyFloat_AsDouble(answer);
		if (PyErr_Occurred() || !(value >= 0 && isfinite(value))) {
			PyErr_Clear();
			PyErr_Format(PyExc_ValueError, "%U returned %R, which is neither a window nor a rate",
				     name, answer);
		}
	}
	Py_DECREF(answer);
	return PyErr_Occurred() ? -1 : value;
}

double control_on_ack(struct controls *controls, size_t index, const struct flow_state *flow, uint64_t now_ns,
		      const struct news *news)
{
	PyObject *arguments[] = {
		NULL,
		since_start(controls, now_ns),
		PyLong_FromLong((long)news->newly_bytes),
		fabric_time(controls, news->rtt_ns),
		PyBool_FromLong(news->marked),
		in_flight(flow),
	};

	return ask(controls, index, controls->on_ack, arguments, 6, false);
}

double control_on_nack(struct controls *controls, size_t index, const struct flow_state *flow,
		       uint64_t now_ns, const struct news *news)
{
	PyObject *arguments[] = {
		NULL,
		since_start(controls, now_ns),
		PyLong_FromLong((long)news->lost_bytes),
		fabric_time(controls, news->rtt_ns),
		in_flight(flow),
	};

	return ask(controls, index, controls->on_nack, arguments, 5, false);
}

double control_on_timeout(struct controls *controls, size_t index, const struct flow_state *flow,
			  uint64_t now_ns, uint32_t bytes)
{
	PyObject *arguments[] = {NULL, since_start(controls, now_ns), PyLong_FromLong((long)bytes),
				 in_flight(flow)};

	return ask(controls, index, controls->on_timeout, arguments, 4, false);
}

double control_on_sent(struct controls *controls, size_t index, const struct flow_state *flow,
		       uint64_t now_ns, uint32_t bytes)
{
	PyObject *arguments[] = {NULL, since_start(controls, now_ns), PyLong_FromLong((long)bytes),
				 in_flight(flow)};

	return ask(controls, index, controls->on_sent, arguments, 4, true);
}
