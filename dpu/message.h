/* SPDX-License-Identifier: Apache-2.0 */
/* What host and DPU say to each other through the mailbox: the one header for both.
 *
 * All fields are little-endian, as both processors are. controller/nic/doca_message.py writes the same
 * layout; tests/unit/test_doca_message.py holds the two together. Who changes it raises PCC_VERSION.
 */
#ifndef INCASTFREE_PCC_MESSAGE_H
#define INCASTFREE_PCC_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "rate_table.h"

#define PCC_MAGIC   0x43434649u /* the bytes "IFCC" */
#define PCC_VERSION 1

/* A rate is in (0, 1] of the line rate, in steps of 2^-20 (DOCA_PCC_DEV_MAX_RATE). */
#define PCC_RATE_BITS 20
#define PCC_RATE_ONE  (1u << PCC_RATE_BITS)

/* Of the QPs that one message can bind. */
#define PCC_BINDINGS 2048
#define PCC_QPN_MIN  2u /* 0 and 1 are the management QPs of InfiniBand */
#define PCC_QPN_MAX  0xffffffu

enum pcc_kind {
	PCC_RATES = 1, /* all slots of the rate table */
	PCC_BINDINGS_AND_SETTINGS = 2, /* which QP uses which slot, all of them */
	PCC_READ = 3, /* nothing changes: the reply carries the rates in force */
};

enum pcc_status {
	PCC_OK,
	PCC_BAD_SIZE, /* the mailbox gave more or fewer bytes than the message says */
	PCC_BAD_MAGIC,
	PCC_BAD_VERSION,
	PCC_BAD_CHECKSUM,
	PCC_BAD_KIND,
	PCC_BAD_COUNT,
	PCC_STALE, /* not newer than what is in force */
	PCC_BAD_RATE,
	PCC_BAD_BINDING,
	PCC_DUPLICATE, /* one QP bound twice */
	PCC_BAD_SETTINGS,
	PCC_STATUSES,
};

struct pcc_head {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint32_t bytes; /* of the message, this head included */
	uint32_t checksum; /* CRC-32 (ISO 3309, as zlib's) of the message with 0 here */
	uint64_t generation; /* counts the messages of its kind, from 1 */
	uint32_t count; /* rates or bindings that follow */
	uint32_t reserved;
};

struct pcc_rates {
	struct pcc_head head;
	uint32_t steps[]; /* a slot each, 0: none was set; the slots after the last get 0 */
};

struct pcc_settings {
	uint32_t unknown_steps; /* rate of a QP that is not bound, or whose slot has no rate; not 0 */
	uint32_t rtt_ns; /* without queues */
	uint32_t bdp_bytes; /* what the line sends in that time */
	uint32_t cnp_bytes; /* that one CNP or NACK stands for */
	uint32_t flags;
	uint32_t reserved;
};

#define PCC_FALLBACK 1u /* flag: rates give way to CNPs and NACKs */

struct pcc_binding {
	uint32_t qpn;
	uint16_t function;
	uint16_t slot;
};

struct pcc_bindings {
	struct pcc_head head;
	struct pcc_settings settings;
	struct pcc_binding binding[];
};

struct pcc_reply {
	uint32_t magic;
	uint16_t version;
	uint16_t status; /* enum pcc_status */
	uint32_t accepted, refused; /* messages since the program was loaded */
	uint64_t rates_generation; /* in force; 0 before the first */
	uint64_t bindings_generation;
	uint32_t count; /* of the rates that follow a PCC_READ */
	uint32_t reserved;
	uint32_t steps[];
};

#define PCC_REQUEST_BYTES (sizeof(struct pcc_bindings) + PCC_BINDINGS * sizeof(struct pcc_binding))
#define PCC_REPLY_BYTES   (sizeof(struct pcc_reply) + RATE_SLOTS * sizeof(uint32_t))

_Static_assert(sizeof(struct pcc_head) == 32, "head");
_Static_assert(offsetof(struct pcc_head, checksum) == 12, "checksum");
_Static_assert(offsetof(struct pcc_head, generation) == 16, "generation");
_Static_assert(offsetof(struct pcc_rates, steps) == 32, "rates");
_Static_assert(sizeof(struct pcc_settings) == 24, "settings");
_Static_assert(sizeof(struct pcc_binding) == 8, "binding");
_Static_assert(offsetof(struct pcc_bindings, binding) == 56, "bindings");
_Static_assert(sizeof(struct pcc_reply) == 40, "reply");
_Static_assert(PCC_REQUEST_BYTES >= sizeof(struct pcc_head) + RATE_SLOTS * sizeof(uint32_t),
	       "a batch of rates fits into the mailbox too");

#endif
