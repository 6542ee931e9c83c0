// SPDX-License-Identifier: Apache-2.0
/* Rates from demands: ceil(amount * numerator / denominator), exactly, without a division for each. */
#ifndef INCASTFREE_STEPS_H
#define INCASTFREE_STEPS_H

#include <stddef.h>
#include <stdint.h>

#define STEPS_MAX_DENOMINATOR (1ULL << 61)

/* The quotient is estimated in doubles and set right by the remainder.
 *
 * A quotient x is at most 2^33. The estimate amount * scale is off by less than 2^-50 of it (at most four
 * roundings of 2^-53: the amount, two in the scale, the product), so by less than 2^-17, and its whole part b
 * is more than x - 1 - 2^-17 and at most x + 2^-17. So the remainder amount * numerator - b * denominator is
 * more than -denominator and less than 2 denominators; it is computed modulo 2^64, which tells it if the
 * denominator is at most 2^61, whatever the numerator. ceil(x) is then b, b + 1 or b + 2.
 *
 * `numerator` is given modulo 2^64, `scale` is numerator / denominator. Returns -1 where a result does not
 * fit into 32 bits, else 0.
 */
static inline int ceil_steps(const int64_t *amounts, size_t count, uint64_t numerator, uint64_t denominator,
			     double scale, uint32_t *steps)
{
	uint64_t beyond = 0;

	for (size_t i = 0; i < count; i++) {
		double estimate = (double)amounts[i] * scale;
		uint64_t below, step;
		int64_t rest;

		if (!(estimate >= 0 && estimate < 0x1p33))
			return -1;
		below = (uint64_t)(int64_t)estimate;
		rest = (int64_t)((uint64_t)amounts[i] * numerator - below * denominator);
		step = below + (rest > 0) + (rest > (int64_t)denominator);
		beyond |= step >> 32;
		steps[i] = (uint32_t)step;
	}
	return beyond ? -1 : 0;
}

/* One rank's rates from its row and the sums of all columns; see rank_rates in controller/schedule/rate.py.
 *
 * `usable` is lambda * Q, a whole number when all line rates are equal. Returns -1, and steps are not to be
 * used, where an amount is negative or the sums are not those of a matrix with this row.
 */
static inline int rank_steps(const int64_t *row, const int64_t *received, size_t hosts, int64_t largest_row,
			     uint32_t usable, uint32_t *steps)
{
	uint64_t own = 0, largest = (uint64_t)largest_row;
	int64_t wrong = largest_row;

	for (size_t host = 0; host < hosts; host++) {
		/* Below 2^63, if neither is negative: then the difference tells which is larger. */
		wrong |= row[host] | received[host];
		wrong |= (int64_t)((uint64_t)received[host] - (uint64_t)row[host]);
		if (own + (uint64_t)row[host] < own)
			return -1;
		own += (uint64_t)row[host];
		if ((uint64_t)received[host] > largest)
			largest = (uint64_t)received[host];
	}
	if (wrong < 0 || own > (uint64_t)largest_row)
		return -1;
	if (!largest) {
		for (size_t host = 0; host < hosts; host++)
			steps[host] = 0;
		return 0;
	}
	if (largest <= STEPS_MAX_DENOMINATOR)
		return ceil_steps(row, hosts, usable, largest, (double)usable / (double)largest, steps);
	for (size_t host = 0; host < hosts; host++) {
		unsigned __int128 product = (unsigned __int128)(uint64_t)row[host] * usable;

		steps[host] = (uint32_t)((product + largest - 1) / largest);
	}
	return 0;
}

#endif
