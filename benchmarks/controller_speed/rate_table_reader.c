// SPDX-License-Identifier: Apache-2.0
/* Reads whole rate tables as fast as it can, and checks that each is of one write: rate_table_reader FD
 * READS.
 *
 * FD is the memory of a table, shared with a writer (benchmarks/controller_speed,
 * tests/unit/test_rate_table.py) whose write number g has (g mod 64) * 0x9e3779b1 + slot * 0x85ebca77 as the
 * rate of each slot. Waits for the first write and says "ready"; prints one line of numbers: reads, torn
 * ones, reads of an older generation than the one before, attempts that a writer overtook, generations that
 * were seen. Exit code 0 if no read was torn and none went back.
 */
#pragma GCC optimize("O3") /* a reader that is slow to check meets few writes */

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "rate_table_io.h"

#define PATTERNS 64

static int is_torn(const __u32 *steps, __u64 generation)
{
	const __u32 first = (__u32)(generation % PATTERNS) * 0x9e3779b1U;
	__u32 wrong = 0;

	for (__u32 slot = 0; slot < RATE_SLOTS; slot++)
		wrong |= steps[slot] ^ (first + slot * 0x85ebca77U);
	return wrong != 0;
}

int main(int count, char **words)
{
	unsigned long long reads, done = 0, torn = 0, back = 0, overtaken = 0, seen = 0;
	const struct rate_table *table;
	static __u32 steps[RATE_SLOTS];
	__u64 generation, last = 0;

	if (count != 3)
		return 2;
	reads = strtoull(words[2], NULL, 10);
	table = mmap(NULL, sizeof(*table), PROT_READ, MAP_SHARED, atoi(words[1]), 0);
	if (table == MAP_FAILED) {
		perror("the table cannot be mapped");
		return 2;
	}
	do {
		rate_table_read(table, steps, &generation);
	} while (!generation);
	last = generation;
	puts("ready");
	fflush(stdout);
	for (; done < reads && !torn && !back; done++) {
		while (!rate_table_read(table, steps, &generation))
			overtaken++;
		torn += is_torn(steps, generation);
		back += generation < last;
		seen += generation != last;
		last = generation;
	}
	printf("%llu %llu %llu %llu %llu\n", done, torn, back, overtaken, seen);
	return torn || back;
}
