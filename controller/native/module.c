// SPDX-License-Identifier: Apache-2.0
/* The Python face of what the controller has in C; controller/native/_native.pyi describes it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "loads.h"
#include "rate_table_io.h"
#include "steps.h"

#define READ_ATTEMPTS 1000

/* A contiguous buffer; `letters` are the formats of its elements that will do (struct's), NULL for any. */
static int get(PyObject *object, Py_buffer *buffer, int flags, const char *letters, Py_ssize_t itemsize)
{
	if (PyObject_GetBuffer(object, buffer, flags | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
		return -1;
	if (!letters || (buffer->itemsize == itemsize && strlen(buffer->format) == 1 &&
			 strchr(letters, buffer->format[0])))
		return 0;
	PyErr_Format(PyExc_TypeError, "elements are %s, and not one of %s of %zd bytes", buffer->format,
		     letters, itemsize);
	PyBuffer_Release(buffer);
	return -1;
}

static int expect(Py_ssize_t given, Py_ssize_t wanted)
{
	if (given == wanted)
		return 0;
	PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", wanted, given);
	return -1;
}

static PyObject *port_loads(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	Py_buffer matrix, sent, received;
	PyObject *result = NULL;
	int64_t seen = 0;
	size_t hosts;

	(void)self;
	if (expect(count, 3) < 0 || get(arguments[0], &matrix, 0, NULL, 0))
		return NULL;
	if (get(arguments[1], &sent, PyBUF_WRITABLE, "lq", 8))
		goto out_matrix;
	if (get(arguments[2], &received, PyBUF_WRITABLE, "lq", 8))
		goto out_sent;
	hosts = (size_t)(sent.len / 8);
	if (matrix.ndim != 2 || matrix.shape[0] != matrix.shape[1] || (size_t)matrix.shape[0] != hosts ||
	    received.len != sent.len || strlen(matrix.format) != 1 ||
	    !((matrix.itemsize == 4 && matrix.format[0] == 'I') ||
	      (matrix.itemsize == 8 && strchr("lq", matrix.format[0])))) {
		PyErr_SetString(PyExc_TypeError,
				"a square matrix of uint32 or int64, and a sum for each row and column");
		goto out;
	}
	Py_BEGIN_ALLOW_THREADS;
	if (matrix.itemsize == 8)
		seen = loads_64(matrix.buf, hosts, sent.buf, received.buf);
	else
		seen = loads_32(matrix.buf, hosts, sent.buf, received.buf);
	Py_END_ALLOW_THREADS;
	result = seen < 0 && matrix.itemsize == 4 ? PyErr_NoMemory() : PyLong_FromLongLong(seen);
out:
	PyBuffer_Release(&received);
out_sent:
	PyBuffer_Release(&sent);
out_matrix:
	PyBuffer_Release(&matrix);
	return result;
}

static PyObject *py_ceil_steps(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	uint64_t numerator, denominator;
	Py_buffer amounts, steps;
	PyObject *result = NULL;
	double scale;
	int failed;

	(void)self;
	if (expect(count, 5) < 0)
		return NULL;
	numerator = PyLong_AsUnsignedLongLongMask(arguments[1]);
	denominator = PyLong_AsUnsignedLongLong(arguments[2]);
	scale = PyFloat_AsDouble(arguments[3]);
	if (PyErr_Occurred() || get(arguments[0], &amounts, 0, "lq", 8))
		return NULL;
	if (get(arguments[4], &steps, PyBUF_WRITABLE, "I", 4))
		goto out_amounts;
	if (amounts.len / 8 != steps.len / 4 || !denominator || denominator > STEPS_MAX_DENOMINATOR) {
		PyErr_SetString(PyExc_ValueError, "as many steps as amounts, and a denominator up to 2^61");
		goto out;
	}
	Py_BEGIN_ALLOW_THREADS;
	failed = ceil_steps(amounts.buf, (size_t)amounts.len / 8, numerator, denominator, scale, steps.buf);
	Py_END_ALLOW_THREADS;
	result = PyBool_FromLong(!failed);
out:
	PyBuffer_Release(&steps);
out_amounts:
	PyBuffer_Release(&amounts);
	return result;
}

static PyObject *py_rank_steps(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	Py_buffer row, received, steps;
	PyObject *result = NULL;
	int64_t largest_row;
	uint64_t usable;

	(void)self;
	if (expect(count, 5) < 0)
		return NULL;
	largest_row = PyLong_AsLongLong(arguments[2]);
	usable = PyLong_AsUnsignedLongLong(arguments[3]);
	if (PyErr_Occurred() || get(arguments[0], &row, 0, "lq", 8))
		return NULL;
	if (get(arguments[1], &received, 0, "lq", 8))
		goto out_row;
	if (get(arguments[4], &steps, PyBUF_WRITABLE, "I", 4))
		goto out_received;
	if (row.len != received.len || row.len / 8 != steps.len / 4 || usable > UINT32_MAX) {
		PyErr_SetString(PyExc_ValueError, "row, columns and steps must be equally long");
		goto out;
	}
	result = PyBool_FromLong(!rank_steps(row.buf, received.buf, (size_t)row.len / 8, largest_row,
					     (uint32_t)usable, steps.buf));
out:
	PyBuffer_Release(&steps);
out_received:
	PyBuffer_Release(&received);
out_row:
	PyBuffer_Release(&row);
	return result;
}

static PyObject *write_table(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	Py_buffer memory, steps;
	PyObject *result = NULL;

	(void)self;
	if (expect(count, 2) < 0 || PyObject_GetBuffer(arguments[0], &memory, PyBUF_WRITABLE))
		return NULL;
	if (PyObject_GetBuffer(arguments[1], &steps, PyBUF_SIMPLE))
		goto out_memory;
	if (memory.len < (Py_ssize_t)sizeof(struct rate_table) || (uintptr_t)memory.buf % 8)
		PyErr_SetString(PyExc_ValueError, "the memory is not that of a rate table");
	else if (steps.len > (Py_ssize_t)(RATE_SLOTS * sizeof(__u32)))
		PyErr_Format(PyExc_ValueError, "%zd rates do not fit into %d slots", steps.len / 4,
			     RATE_SLOTS);
	else if (steps.len % 4)
		PyErr_SetString(PyExc_ValueError, "a rate has 4 bytes");
	else {
		rate_table_write(memory.buf, steps.buf, (__u32)(steps.len / 4));
		result = Py_NewRef(Py_None);
	}
	PyBuffer_Release(&steps);
out_memory:
	PyBuffer_Release(&memory);
	return result;
}

static PyObject *read_table(PyObject *self, PyObject *object)
{
	__u64 generation = 0;
	PyObject *rates;
	Py_buffer memory;
	int whole = 0;

	(void)self;
	if (PyObject_GetBuffer(object, &memory, PyBUF_SIMPLE))
		return NULL;
	if (memory.len < (Py_ssize_t)sizeof(struct rate_table) || (uintptr_t)memory.buf % 8) {
		PyErr_SetString(PyExc_ValueError, "the memory is not that of a rate table");
		PyBuffer_Release(&memory);
		return NULL;
	}
	rates = PyBytes_FromStringAndSize(NULL, RATE_SLOTS * sizeof(__u32));
	for (int attempt = 0; rates && !whole && attempt < READ_ATTEMPTS; attempt++)
		whole = rate_table_read(memory.buf, (__u32 *)PyBytes_AS_STRING(rates), &generation);
	PyBuffer_Release(&memory);
	if (rates && whole)
		return Py_BuildValue("KN", (unsigned long long)generation, rates);
	Py_XDECREF(rates);
	return rates ? Py_NewRef(Py_None) : NULL;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
	{"port_loads", FAST(port_loads), METH_FASTCALL, "Sums of rows and columns."},
	{"ceil_steps", FAST(py_ceil_steps), METH_FASTCALL, "Amounts to rates."},
	{"rank_steps", FAST(py_rank_steps), METH_FASTCALL, "One rank's rates."},
	{"write_table", FAST(write_table), METH_FASTCALL, "Puts rates in force."},
	{"read_table", read_table, METH_O, "Reads the rates in force."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
	return PyModule_Create(&module);
}
