/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel fabric's hashes (ebpf/include/mix.h, ebpf/fabric/switch.h), bit for bit. */
#ifndef HASH_P4
#define HASH_P4

#include "headers.p4"

/* 32-bit finaliser with low bias ("lowbias32", Chris Wellons, Prospecting for Hash Functions, 2018). */
control Mix32(inout bit<32> x) {
    apply {
        x = x ^ (x >> 16);
        x = x * 0x7feb352d;
        x = x ^ (x >> 15);
        x = x * 0x846ca68b;
        x = x ^ (x >> 16);
    }
}

#endif
