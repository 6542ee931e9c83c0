// SPDX-License-Identifier: Apache-2.0
/* Row and column sums of a matrix in one pass over it.
 *
 * Two 32-bit entries lie in each 64-bit word, low | high << 32. Per row and per column two sums are kept,
 * that of the words, modulo 2^64, and that of the high halves, which is exact; the low halves' sum follows
 * from them: it fits into 64 bits, and so is (words - high << 32) modulo 2^64. That takes four additions and
 * a shift for two entries that are in memory side by side, and nothing has to be widened.
 *
 * Several rows are read at once, so that a column's sums are loaded and stored once for all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "loads.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "entries are taken as halves of little-endian words"
#endif

#define LANES     4
#define ROWS      4 /* read at once: their sums fill 16 vector registers */
#define MANY_ROWS 6 /* 32 registers */

typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));
typedef uint64_t loose_lanes __attribute__((vector_size(8 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* One binary for all machines of an architecture: what a processor has is found out when it runs. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define WIDEST      __attribute__((target_clones("avx2", "default")))
#define AVX512_ONLY __attribute__((target("avx512f,avx512vl")))
#endif
#endif
#ifndef WIDEST
#define WIDEST
#endif

/* The sums of the columns so far: of words, of their high halves, and of the column that has no partner. */
struct columns {
	uint64_t *words;
	uint64_t *high;
	uint64_t last;
};

INLINE void add_rows_32(const uint32_t *rows, size_t hosts, int count, struct columns *columns,
			uint64_t *sent)
{
	lanes words[MANY_ROWS] = {{0}}, high[MANY_ROWS] = {{0}};
	const size_t pairs = hosts / 2, whole = pairs - pairs % LANES;

	for (size_t pair = 0; pair < whole; pair += LANES) {
		lanes column_words = *(loose_lanes *)(columns->words + pair);
		lanes column_high = *(loose_lanes *)(columns->high + pair);

		for (int row = 0; row < count; row++) {
			lanes word = *(const loose_lanes *)(rows + (size_t)row * hosts + 2 * pair);
			lanes half = word >> 32;

			words[row] += word;
			high[row] += half;
			column_words += word;
			column_high += half;
		}
		*(loose_lanes *)(columns->words + pair) = column_words;
		*(loose_lanes *)(columns->high + pair) = column_high;
	}
	for (int row = 0; row < count; row++) {
		const uint32_t *entries = rows + (size_t)row * hosts;
		uint64_t all = 0, upper = 0;

		for (int lane = 0; lane < LANES; lane++) {
			all += words[row][lane];
			upper += high[row][lane];
		}
		sent[row] = all - (upper << 32) + upper;
		for (size_t pair = whole; pair < pairs; pair++) {
			uint64_t low = entries[2 * pair], half = entries[2 * pair + 1];

			sent[row] += low + half;
			columns->words[pair] += low | half << 32;
			columns->high[pair] += half;
		}
		if (hosts % 2) {
			sent[row] += entries[hosts - 1];
			columns->last += entries[hosts - 1];
		}
	}
}

INLINE void pass_32(const uint32_t *matrix, size_t hosts, size_t at_once, struct columns *columns,
		    uint64_t *sent)
{
	size_t row = 0;

	for (; row + at_once <= hosts; row += at_once)
		add_rows_32(matrix + row * hosts, hosts, (int)at_once, columns, sent + row);
	for (; row < hosts; row++)
		add_rows_32(matrix + row * hosts, hosts, 1, columns, sent + row);
}

WIDEST static void pass_32_any(const uint32_t *matrix, size_t hosts, struct columns *columns, uint64_t *sent)
{
	pass_32(matrix, hosts, ROWS, columns, sent);
}

#ifdef AVX512_ONLY
AVX512_ONLY static void pass_32_avx512(const uint32_t *matrix, size_t hosts, struct columns *columns,
				       uint64_t *sent)
{
	pass_32(matrix, hosts, MANY_ROWS, columns, sent);
}

static int has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
}
#else
#define pass_32_avx512 pass_32_any
#define has_avx512()   0
#endif

int loads_32(const uint32_t *matrix, size_t hosts, uint64_t *sent, uint64_t *received)
{
	const size_t pairs = hosts / 2;
	uint64_t *sums = calloc(2 * pairs + 1, sizeof(*sums));
	struct columns columns = {.words = sums, .high = sums + pairs};

	if (!sums)
		return -1;
	if (has_avx512())
		pass_32_avx512(matrix, hosts, &columns, sent);
	else
		pass_32_any(matrix, hosts, &columns, sent);
	for (size_t pair = 0; pair < pairs; pair++) {
		received[2 * pair] = columns.words[pair] - (columns.high[pair] << 32);
		received[2 * pair + 1] = columns.high[pair];
	}
	if (hosts % 2)
		received[hosts - 1] = columns.last;
	for (size_t host = 0; host < hosts; host++) {
		sent[host] -= matrix[host * hosts + host];
		received[host] -= matrix[host * hosts + host];
	}
	free(sums);
	return 0;
}

INLINE uint64_t add_rows_64(const int64_t *rows, size_t hosts, int count, uint64_t *received, uint64_t *sent)
{
	lanes sums[ROWS] = {{0}}, seen = {0};
	const size_t whole = hosts - hosts % LANES;
	uint64_t any = 0;

	for (size_t column = 0; column < whole; column += LANES) {
		lanes down = *(loose_lanes *)(received + column);

		for (int row = 0; row < count; row++) {
			lanes entries = *(const loose_lanes *)(rows + (size_t)row * hosts + column);

			sums[row] += entries;
			down += entries;
			seen |= entries;
		}
		*(loose_lanes *)(received + column) = down;
	}
	for (int lane = 0; lane < LANES; lane++)
		any |= seen[lane];
	for (int row = 0; row < count; row++) {
		sent[row] = 0;
		for (int lane = 0; lane < LANES; lane++)
			sent[row] += sums[row][lane];
		for (size_t column = whole; column < hosts; column++) {
			uint64_t entry = (uint64_t)rows[(size_t)row * hosts + column];

			sent[row] += entry;
			received[column] += entry;
			any |= entry;
		}
	}
	return any;
}

WIDEST static uint64_t pass_64(const int64_t *matrix, size_t hosts, uint64_t *received, uint64_t *sent)
{
	size_t row = 0;
	uint64_t any = 0;

	for (; row + ROWS <= hosts; row += ROWS)
		any |= add_rows_64(matrix + row * hosts, hosts, ROWS, received, sent + row);
	for (; row < hosts; row++)
		any |= add_rows_64(matrix + row * hosts, hosts, 1, received, sent + row);
	return any;
}

int64_t loads_64(const int64_t *matrix, size_t hosts, uint64_t *sent, uint64_t *received)
{
	uint64_t any;

	memset(received, 0, hosts * sizeof(*received));
	any = pass_64(matrix, hosts, received, sent);
	for (size_t host = 0; host < hosts; host++) {
		sent[host] -= (uint64_t)matrix[host * hosts + host];
		received[host] -= (uint64_t)matrix[host * hosts + host];
	}
	return (int64_t)any;
}
