/* SPDX-License-Identifier: Apache-2.0 */
/* What the hosts do in one period: what they hear, and what they send. */
#ifndef INCASTFREE_HOSTS_H
#define INCASTFREE_HOSTS_H

#include "engine.h"

/* The barrier: where all of a stage has come, the next one begins when everybody has heard of it. The engine
 * learns of it a period late, which is in time if the news takes longer.
 */
void hosts_pass_barriers(struct engine *engine, uint64_t begin_ns);
/* All hosts from begin_ns up to horizon_ns, with the change of rates that lies between. 0, or -1 with an
 * exception.
 */
int hosts_run(struct engine *engine, uint64_t begin_ns, uint64_t horizon_ns);

#endif
