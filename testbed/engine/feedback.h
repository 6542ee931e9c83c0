/* SPDX-License-Identifier: Apache-2.0 */
/* ACKs and NACKs that the fabric has noted, until their hosts hear of them. */
#ifndef INCASTFREE_FEEDBACK_H
#define INCASTFREE_FEEDBACK_H

#include "engine.h"

/* Sorts what the fabric noted for the hosts, each host's in the order of arrival. 0, or -1 with an exception.
 */
int feedback_read(struct engine *engine);

/* The first of what is arriving, of which there is some, has been heard. */
static inline void feedback_drop_first(struct engine *engine, struct queue *arriving)
{
	uint32_t place = arriving->head;
	struct pending *heard = &engine->pending[place];

	arriving->head = heard->next;
	if (arriving->head)
		engine->pending[arriving->head].previous = 0;
	else
		arriving->tail = 0;
	heard->next = engine->pending_free;
	engine->pending_free = place;
}

#endif
