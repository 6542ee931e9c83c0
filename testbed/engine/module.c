// SPDX-License-Identifier: Apache-2.0
/* The engine's Python face: arguments and results. */
#include "engine.h"

struct flow_result { /* as testbed/engine/__init__.py lays it out */
	uint64_t done_ns;
	uint32_t retransmissions, nacks, timeouts, sack_losses, probes, reserved;
};

static PyObject *flow_results(const struct engine *engine)
{
	PyObject *bytes = PyBytes_FromStringAndSize(
		NULL, (Py_ssize_t)(engine->flow_count * sizeof(struct flow_result)));

	for (uint32_t i = 0; bytes && i < engine->flow_count; i++) {
		const struct flow_state *flow = &engine->flow_storage[i];

		((struct flow_result *)PyBytes_AS_STRING(bytes))[i] = (struct flow_result){
			.done_ns = flow->done_ns,
			.retransmissions = flow->retransmissions,
			.nacks = flow->nacks,
			.timeouts = flow->timeouts,
			.sack_losses = flow->sack_losses,
			.probes = flow->probes,
		};
	}
	return bytes;
}

static PyObject *results(struct engine *engine)
{
	const struct measure *measure = &engine->measure;
	size_t cells = (size_t)measure->port_count * MEASURE_BUCKETS;
	uint64_t *deepest = malloc(measure->port_count * sizeof(*deepest));
	PyObject *dict, *flows = flow_results(engine);

	if (!deepest || !flows) {
		free(deepest);
		Py_XDECREF(flows);
		return PyErr_NoMemory();
	}
	for (uint32_t port = 0; port < measure->port_count; port++)
		deepest[port] = measure->ports[port].max_queue_bytes;
	dict = Py_BuildValue(
		"{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:y#,s:y#,s:y#"
		"}",
		"epoch_ns", (unsigned long long)engine->epoch_ns, "sent_packets",
		(unsigned long long)engine->sent_packets, "background_sent",
		(unsigned long long)engine->background_sent, "background_delivered",
		(unsigned long long)engine_head(engine)->background_delivered, "background_trimmed",
		(unsigned long long)engine_head(engine)->background_trimmed, "packet_hops",
		(unsigned long long)engine->packet_hops, "late_packets",
		(unsigned long long)engine_head(engine)->late_packets, "lateness_max_ns",
		(unsigned long long)engine_head(engine)->lateness_max_ns, "timed",
		(unsigned long long)engine_head(engine)->timed, "acks",
		(unsigned long long)engine_head(engine)->acks, "nacks",
		(unsigned long long)engine_head(engine)->nacks, "heard", (unsigned long long)engine->heard,
		"dpu_messages", (unsigned long long)engine->dpus.messages, "dpu_cnps",
		(unsigned long long)engine->dpus.cnps, "dpu_nacks", (unsigned long long)engine->dpus.nacks,
		"dpu_unknown", (unsigned long long)engine->dpus.unknown, "total_queue_max_bytes",
		(unsigned long long)measure->max_total_bytes, "bucket_ns",
		(unsigned long long)measure->bucket_ns, "flow_results", flows, "port_queue_max_bytes",
		deepest, (Py_ssize_t)(measure->port_count * sizeof(*deepest)), "series_queue_bytes",
		measure->series_queue_bytes, (Py_ssize_t)(cells * sizeof(*measure->series_queue_bytes)),
		"series_sent_bytes", measure->series_sent_bytes,
		(Py_ssize_t)(cells * sizeof(*measure->series_sent_bytes)));
	free(deepest);
	return dict;
}

static bool is_sound(const struct engine *engine)
{
	const struct engine *e = engine;
	size_t flow_count = (size_t)e->flows.len / sizeof(struct flow);

	return e->start_ns.len == e->byte_ns.len &&
	       e->records.len >= (Py_ssize_t)(RECORD_CAPACITY * sizeof(struct record)) &&
	       e->feedback.len >= (Py_ssize_t)(FEEDBACK_CAPACITY * sizeof(struct feedback)) &&
	       e->head.len >= (Py_ssize_t)sizeof(struct record_head) &&
	       e->ports.len >= (Py_ssize_t)(e->port_count * sizeof(struct port)) && e->sockets >= 1 &&
	       e->sockets <= MAX_SOCKETS && e->stages.len % (Py_ssize_t)sizeof(struct stage) == 0 &&
	       !(e->discipline == STAGED && e->controls.kind == CONTROL_RATE) && e->period_ns &&
	       e->bucket_ns && e->slot_ns && e->dilation > 0 &&
	       (e->controls.kind == CONTROL_NONE ||
		(e->windows.len == (Py_ssize_t)(flow_count * sizeof(double)) &&
		 PyList_GET_SIZE(e->controls.objects) == (Py_ssize_t)flow_count && engine_has_transport(e)));
}

static void release(struct engine *engine)
{
	Py_buffer *buffers[] = {&engine->flows,   &engine->background, &engine->mailbox,
				&engine->byte_ns, &engine->start_ns,   &engine->propagation_ns,
				&engine->windows, &engine->head,       &engine->records,
				&engine->ports,   &engine->feedback,   &engine->stages};

	for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); i++)
		if (buffers[i]->obj)
			PyBuffer_Release(buffers[i]);
	engine_free(engine);
	controls_free(&engine->controls);
}

static PyObject *engine_run(PyObject *self, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"flows",         "background",     "mailbox",   "byte_ns",
				"start_ns",      "propagation_ns", "windows",   "head",
				"records",       "ports",          "feedback",  "mtu_bytes",
				"seed",          "discipline",     "balancing", "recovery",
				"control_kind",  "period_ns",      "lead_ns",   "limit_ns",
				"bucket_ns",     "slot_ns",        "rto_ns",    "reorder_ns",
				"probe_ns",      "tail_probe_ns",  "epoch_ns",  "rates_ns",
				"linger_ns",     "freeze_ns",      "dilation",  "controls",
				"calls_on_sent", "late_records",   "ifindex",   "sockets",
				"progress_fd",   "trace_fd",       "events_fd", "stages",
				"barrier",       "barrier_ns",     NULL};
	struct engine engine = {0};
	unsigned long long period_ns, lead_ns, limit_ns, bucket_ns, slot_ns, rto_ns, reorder_ns, probe_ns,
		tail_probe_ns, epoch_ns, rates_ns, linger_ns, freeze_ns, barrier_ns;
	PyObject *dict = NULL, *controls;
	int discipline, balancing, recovery, kind, calls_on_sent, late_records, barrier;

	(void)self;
	if (!PyArg_ParseTupleAndKeywords(
		    args, keywords, "y*y*y*y*y*y*y*y*y*y*y*IIiiiiKKKKKKKKKKKKKdOppiiiiiy*pK", names,
		    &engine.flows, &engine.background, &engine.mailbox, &engine.byte_ns, &engine.start_ns,
		    &engine.propagation_ns, &engine.windows, &engine.head, &engine.records, &engine.ports,
		    &engine.feedback, &engine.mtu_bytes, &engine.seed, &discipline, &balancing, &recovery,
		    &kind, &period_ns, &lead_ns, &limit_ns, &bucket_ns, &slot_ns, &rto_ns, &reorder_ns,
		    &probe_ns, &tail_probe_ns, &epoch_ns, &rates_ns, &linger_ns, &freeze_ns, &engine.dilation,
		    &controls, &calls_on_sent, &late_records, &engine.ifindex, &engine.sockets,
		    &engine.progress_fd, &engine.trace_fd, &engine.events_fd, &engine.stages, &barrier,
		    &barrier_ns))
		goto out;
	engine.discipline = (enum discipline)discipline;
	engine.balancing = (enum balancing)balancing;
	engine.transport =
		(struct transport){.recovery = (enum loss_recovery)recovery,
				   .rto_ns = rto_ns,
				   .ack_packets = (ACK_BYTES + engine.mtu_bytes - 1) / engine.mtu_bytes + 1,
				   .reorder_ns = reorder_ns,
				   .probe_ns = probe_ns,
				   .tail_probe_ns = tail_probe_ns};
	engine.period_ns = period_ns;
	engine.epoch_ns = epoch_ns;
	engine.rates_ns = rates_ns;
	engine.linger_ns = linger_ns;
	engine.freeze_ns = freeze_ns;
	engine.late_records = late_records;
	engine.barrier = barrier;
	engine.barrier_ns = barrier_ns;
	engine.lead_ns = lead_ns;
	engine.limit_ns = limit_ns;
	engine.bucket_ns = bucket_ns;
	engine.slot_ns = slot_ns;
	engine.host_count = (uint32_t)(engine.byte_ns.len / (Py_ssize_t)sizeof(uint64_t));
	engine.port_count = (uint32_t)(engine.propagation_ns.len / (Py_ssize_t)sizeof(uint32_t));
	if (controls_init(&engine.controls, (enum control_kind)kind, engine.dilation, controls,
			  calls_on_sent))
		goto out;
	if (!is_sound(&engine)) {
		PyErr_SetString(PyExc_ValueError, "an argument has the wrong size or is out of range");
		goto out;
	}
	if (engine_prepare(&engine) || engine_drive(&engine) || engine_finish(&engine))
		goto out;
	dict = results(&engine);
out:
	release(&engine);
	return dict;
}

static PyMethodDef methods[] = {
	{"run", (PyCFunction)(void (*)(void))engine_run, METH_VARARGS | METH_KEYWORDS,
	 "Sends all flows and measures until the last packet has arrived; see testbed/engine/__init__.py."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "_engine", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__engine(void)
{
	return PyModule_Create(&module);
}
