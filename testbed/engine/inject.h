/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of all hosts into the kernel, many a system call. */
#ifndef INCASTFREE_INJECT_H
#define INCASTFREE_INJECT_H

#include <stdint.h>

#include "sender.h"

#define INJECT_BATCH 512

struct inject;

/* One packet socket a group of hosts on the interface `ifindex`. NULL with errno set on failure. */
struct inject *inject_open(int ifindex, int sockets);
void inject_close(struct inject *inject);
/* Queues a frame, and sends the batch when it is full. 0, or -1 with errno. */
int inject_packet(struct inject *inject, int socket, const struct packet *packet, uint16_t entropy);
int inject_flush(struct inject *inject);

#endif
