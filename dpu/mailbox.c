// SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

/* Requests need not be aligned. */
#define copy __builtin_memcpy

/* CRC-32, four bits at a time: a table of 16 words is loaded faster than one of 256. */
static uint32_t crc32_of(uint32_t crc, const uint8_t *bytes, uint32_t count)
{
	static const uint32_t table[16] = {
		0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
		0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
		0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
	};

	for (uint32_t i = 0; i < count; i++) {
		crc = table[(crc ^ bytes[i]) & 15] ^ crc >> 4;
		crc = table[(crc ^ (uint32_t)bytes[i] >> 4) & 15] ^ crc >> 4;
	}
	return crc;
}

static uint32_t checksum(const uint8_t *message, uint32_t bytes)
{
	static const uint8_t zero[4];
	uint32_t at = offsetof(struct pcc_head, checksum);
	uint32_t crc = crc32_of(0xffffffffu, message, at);

	crc = crc32_of(crc, zero, sizeof(zero));
	return ~crc32_of(crc, message + at + sizeof(zero), bytes - at - (uint32_t)sizeof(zero));
}

int pcc_settings_valid(const struct pcc_settings *settings)
{
	return settings->unknown_steps && settings->unknown_steps <= PCC_RATE_ONE && settings->rtt_ns &&
	       settings->bdp_bytes && settings->cnp_bytes && !(settings->flags & ~PCC_FALLBACK);
}

uint32_t pcc_set_parameters(struct pcc_state *state, uint32_t first, uint32_t count, const uint32_t *values)
{
	struct pcc_settings *settings = &state->bindings[state->active & 1].settings, wanted = *settings;
	uint32_t *const fields[PCC_PARAMETERS] = {&wanted.unknown_steps, &wanted.rtt_ns, &wanted.bdp_bytes,
						  &wanted.cnp_bytes, &wanted.flags};

	if (first >= PCC_PARAMETERS || count > PCC_PARAMETERS - first)
		return PCC_BAD_COUNT;
	for (uint32_t i = 0; i < count; i++)
		*fields[first + i] = values[i];
	if (!pcc_bindings_in_force(state)->generation || !pcc_settings_valid(&wanted))
		return PCC_BAD_SETTINGS;
	*settings = wanted; /* a flow may see some of them earlier: each of them is valid */
	return PCC_OK;
}

static uint32_t put_rates(struct pcc_state *state, const struct pcc_head *head, const uint8_t *message)
{
	struct rate_table *table = &state->rates;
	const uint8_t *steps = message + offsetof(struct pcc_rates, steps);
	uint32_t target = ~table->active & 1;
	struct rate_half *half = &table->half[target];

	if (head->count > RATE_SLOTS ||
	    head->bytes != sizeof(struct pcc_rates) + head->count * sizeof(uint32_t))
		return PCC_BAD_COUNT;
	if (head->generation <= table->half[table->active & 1].generation)
		return PCC_STALE;
	for (uint32_t i = 0; i < head->count; i++) {
		uint32_t value;

		copy(&value, steps + i * sizeof(value), sizeof(value));
		if (value > PCC_RATE_ONE)
			return PCC_BAD_RATE;
	}
	half->generation = 0;
	for (uint32_t i = 0; i < RATE_SLOTS; i++) {
		uint32_t value = 0;

		if (i < head->count)
			copy(&value, steps + i * sizeof(value), sizeof(value));
		half->steps[i] = value;
	}
	half->generation = head->generation;
	__atomic_store_n(&table->active, target, __ATOMIC_RELEASE);
	return PCC_OK;
}

/* Into a half that is not in force. */
static uint32_t insert(struct pcc_half *half, const struct pcc_binding *binding)
{
	uint32_t at = pcc_place(binding->function, binding->qpn);

	if (binding->qpn < PCC_QPN_MIN || binding->qpn > PCC_QPN_MAX || binding->slot >= RATE_SLOTS)
		return PCC_BAD_BINDING;
	while (half->place[at].qpn) {
		if (half->place[at].qpn == binding->qpn && half->place[at].function == binding->function)
			return PCC_DUPLICATE;
		at = (at + 1) & (PCC_PLACES - 1);
	}
	half->place[at] = *binding;
	half->sharers[binding->slot]++;
	return PCC_OK;
}

static uint32_t put_bindings(struct pcc_state *state, const struct pcc_head *head, const uint8_t *message)
{
	uint32_t target = ~state->active & 1;
	struct pcc_half *half = &state->bindings[target];
	uint32_t status;

	if (head->count > PCC_BINDINGS ||
	    head->bytes != sizeof(struct pcc_bindings) + head->count * sizeof(struct pcc_binding))
		return PCC_BAD_COUNT;
	if (head->generation <= pcc_bindings_in_force(state)->generation)
		return PCC_STALE;
	half->generation = 0;
	copy(&half->settings, message + offsetof(struct pcc_bindings, settings), sizeof(half->settings));
	if (!pcc_settings_valid(&half->settings))
		return PCC_BAD_SETTINGS;
	for (uint32_t i = 0; i < PCC_PLACES; i++)
		half->place[i].qpn = 0;
	for (uint32_t i = 0; i < RATE_SLOTS; i++)
		half->sharers[i] = 0;
	for (uint32_t i = 0; i < head->count; i++) {
		struct pcc_binding binding;

		copy(&binding, message + offsetof(struct pcc_bindings, binding) + i * sizeof(binding),
		     sizeof(binding));
		status = insert(half, &binding);
		if (status != PCC_OK)
			return status;
	}
	half->generation = head->generation;
	__atomic_store_n(&state->active, target, __ATOMIC_RELEASE);
	return PCC_OK;
}

static uint32_t act(struct pcc_state *state, struct pcc_head *head, const uint8_t *message, uint32_t bytes)
{
	if (bytes < sizeof(*head))
		return PCC_BAD_SIZE;
	copy(head, message, sizeof(*head));
	if (head->magic != PCC_MAGIC)
		return PCC_BAD_MAGIC;
	if (head->version != PCC_VERSION)
		return PCC_BAD_VERSION;
	if (head->bytes != bytes)
		return PCC_BAD_SIZE;
	if (head->checksum != checksum(message, bytes))
		return PCC_BAD_CHECKSUM;
	switch (head->kind) {
	case PCC_RATES:
		return put_rates(state, head, message);
	case PCC_BINDINGS_AND_SETTINGS:
		return put_bindings(state, head, message);
	case PCC_READ:
		return head->count || bytes != sizeof(*head) ? PCC_BAD_COUNT : PCC_OK;
	default:
		return PCC_BAD_KIND;
	}
}

uint32_t pcc_mailbox(struct pcc_state *state, const void *request, uint32_t request_bytes, void *reply,
		     uint32_t reply_room, uint32_t *status)
{
	struct pcc_head head = {0};
	const struct rate_half *rates;
	struct pcc_reply answer;
	uint32_t bytes = sizeof(answer), refused = 0;

	*status = act(state, &head, request, request_bytes);
	if (*status == PCC_OK)
		state->accepted++;
	else
		state->refused[*status]++;
	if (reply_room < sizeof(answer))
		return 0;
	for (uint32_t i = 0; i < PCC_STATUSES; i++)
		refused += state->refused[i];
	rates = &state->rates.half[state->rates.active & 1];
	answer = (struct pcc_reply){
		.magic = PCC_MAGIC,
		.version = PCC_VERSION,
		.status = (uint16_t)*status,
		.accepted = state->accepted,
		.refused = refused,
		.rates_generation = rates->generation,
		.bindings_generation = pcc_bindings_in_force(state)->generation,
	};
	if (*status == PCC_OK && head.kind == PCC_READ && reply_room >= PCC_REPLY_BYTES) {
		answer.count = RATE_SLOTS;
		copy((uint8_t *)reply + bytes, rates->steps, sizeof(rates->steps));
		bytes = PCC_REPLY_BYTES;
	}
	copy(reply, &answer, sizeof(answer));
	return bytes;
}
