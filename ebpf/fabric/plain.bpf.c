// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The programs of the runs that most are: frames of the engine, one interface for all ports, and no losses
 * but those of full queues. What a run may also have, the compiler knows that these have not (COMMON in
 * state.h). The programs are few as well, since the verifier looks at each.
 */
#define PLAIN
#include "trunk.h"

char LICENSE[] SEC("license") = "GPL";
