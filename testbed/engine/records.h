/* SPDX-License-Identifier: Apache-2.0 */
/* Records of packets, from the fabric to what is measured of them and to the trace. */
#ifndef INCASTFREE_RECORDS_H
#define INCASTFREE_RECORDS_H

#include "engine.h"

/* Measures what the fabric recorded since, or keeps it where records come late. 0, or -1 with an exception.
 */
int records_read(struct engine *engine);
/* Measures what was kept. 0, or -1 with an exception. */
int records_measure_kept(struct engine *engine);
/* And traces it. 0, or -1 with an exception. */
int records_trace_kept(struct engine *engine);

#endif
