/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Maps and globals of the testbed's fabric object; ../include/fabric.h says what is in them. */
#ifndef INCASTFREE_FABRIC_STATE_H
#define INCASTFREE_FABRIC_STATE_H

#include <stdbool.h>

#include "bpf_common.h"

#include "edt.h"
#include "fabric.h"
#include "frame.h"
#include "rate_table.h"

#define MAX_PORTS     8192
#define MAX_ROUTES    (1u << 19)
#define MAX_MEMBERS   (1u << 16)
#define ADAPTIVE_WAYS 64

/* Constants of a run: what is 0 here costs little, since the verifier takes the code away, but not the loads.
 *
 * Those of the first group most runs have alike. plain.bpf.c compiles the same programs with them known to
 * the compiler, which then needs a third less instructions for a hop; testbed/fabric/programs.py takes that
 * object where it will do.
 */
#ifdef PLAIN
#define COMMON(name, plain) static const __u32 name = plain
#define CALLED              __always_inline /* a call costs as much as 30 instructions */
#else
#define COMMON(name, plain) const volatile __u32 name
#define CALLED              __noinline
#endif

COMMON(trunk, 1); /* all ports share one interface */
COMMON(real_programs, 0); /* send through their own sockets */
COMMON(veth, 0); /* links are veth, and frames say when they are due */
COMMON(tracing, 0); /* records say which packet it was */
COMMON(loss_data, 0); /* probabilities, in 2^-32 */
COMMON(loss_control, 0);
COMMON(failing, 0); /* some link has a down_ns */
COMMON(adaptive, 0); /* data takes the least occupied member of a group */

const volatile __u32 host_count;
const volatile __u32 tolerance_ns; /* on veth: a packet is late that comes so much later than it is due */
const volatile __u32 acknowledging; /* NICs answer data: there is a transport */
const volatile __u32 trimming; /* a full queue cuts the payload off and keeps the header */
const volatile __u32 ecn_kmin_bytes, ecn_kmax_bytes; /* kmax 0: no marks */
const volatile __u32 arrival_slots; /* of one port, a power of two */
const volatile __u32 mark_salt, loss_salt;
const volatile __u32 spraying; /* each packet of a real program takes a way of its own */

/* In .bss rather than in a map of their own: an access is an address, not a call, and there is no JIT
 * in a User-Mode-Linux kernel to inline the call.
 */
struct port ports[MAX_PORTS];
__u32 routes[MAX_ROUTES];
__u32 members[MAX_MEMBERS]; /* ports of the groups that routes point into */
__u64 occupancy_ns[MAX_PORTS]; /* adaptive routing: time to serialise the queue that it is a share of */
struct arrival arrivals[ARRIVAL_CAPACITY];
struct record records[RECORD_CAPACITY];
struct record_head record_head;
struct feedback feedback[FEEDBACK_CAPACITY];
__u64 received[RECEIVED_WORDS];
__u64 deepest_ns[MAX_PORTS]; /* with real programs: the most time that a port's queue would have taken */

/* Sized by the loader: see testbed/fabric/programs.py. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rate_table);
} rate_tables SEC(".maps"); /* one a NIC */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edt_flow);
} edt_flows SEC(".maps"); /* source * host_count + destination */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct receive);
} receives SEC(".maps"); /* source * host_count + destination */

/* Connections of real programs, by hosts and ports: the how-manieth of its two hosts it is. A program's own
 * port is drawn at random by its kernel; a path that hangs on it would differ from run to run.
 */
struct connection {
	__u32 hosts; /* source << 16 | destination */
	__u32 ports;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* of one that finds no room the number is 0 */
	__type(key, struct connection);
	__type(value, __u32);
} connections SEC(".maps");

/* Where the compiler knows the index to be in range and the verifier does not. */
static __always_inline struct port *port_at(__u32 index)
{
	struct port *port;

	asm("" : "+r"(index));
	port = &ports[index & (MAX_PORTS - 1)];
	/* Kept: clang would rather compute it anew at each use. */
	asm("" : "+r"(port));
	return port;
}

#endif
