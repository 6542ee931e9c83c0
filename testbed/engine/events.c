// SPDX-License-Identifier: Apache-2.0
#include "events.h"

#include <errno.h>
#include <unistd.h>

int events_flush(struct events *events)
{
	const char *next = (const char *)events->held;
	size_t bytes = events->count * sizeof(*events->held);

	events->count = 0;
	while (bytes && !events->error) {
		ssize_t n = write(events->fd, next, bytes);

		if (n < 0 && errno != EINTR)
			events->error = errno;
		if (n > 0) {
			next += n;
			bytes -= (size_t)n;
		}
	}
	errno = events->error;
	return events->error ? -1 : 0;
}

void events_note(struct events *events, struct event event)
{
	if (events->fd < 0)
		return;
	events->held[events->count++] = event;
	if (events->count == EVENTS_HELD)
		events_flush(events);
}
