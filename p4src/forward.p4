/* SPDX-License-Identifier: Apache-2.0 */
/* Which port a packet leaves by. */
#ifndef FORWARD_P4
#define FORWARD_P4

#include "hash.p4"
#include "headers.p4"

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Mix32() mix;
    counter(MAX_PORTS, CounterType.packets) foreign;
    bit<32> mixed;

    action set_identity(bit<32> path_salt, bit<32> mark_salt, bit<1> trimming) {
        meta.path_salt = path_salt;
        meta.mark_salt = mark_salt;
        meta.trimming = trimming;
    }
    table identity {
        actions = { set_identity; NoAction; }
        default_action = NoAction;
        size = 1;
    }

    action drop_foreign() {
        foreign.count((bit<32>)standard.ingress_port);
        mark_to_drop(standard);
    }
    action forward(port_t port) {
        standard.egress_spec = port;
        meta.forwarded = 1;
    }
    /* The first member of the group and how many there are: the mixed five-tuple, scaled, names the place. */
    action spread(bit<32> first, bit<32> ways) {
        meta.member = first + (bit<32>)(((bit<64>)mixed * (bit<64>)ways) >> 32);
    }
    table route {
        key = { hdr.ipv4.destination: exact; }
        actions = { forward; spread; drop_foreign; }
        default_action = drop_foreign;
        size = MAX_HOSTS;
    }
    table members {
        key = { meta.member: exact; }
        actions = { forward; drop_foreign; }
        default_action = drop_foreign;
        size = MAX_MEMBERS;
    }

    apply {
        identity.apply();
        if (!hdr.ipv4.isValid() || hdr.ipv4.version != 4 || hdr.ipv4.ihl != 5) {
            drop_foreign();
        } else {
            bit<32> ports = 0;
            if (hdr.l4_ports.isValid()) {
                ports = hdr.l4_ports.source ++ hdr.l4_ports.destination;
            }
            /* Hosts count from their first address, 10.0.0.1; the odd multipliers are xxHash32's primes. */
            mixed = meta.path_salt + (hdr.ipv4.source - 0x0a000001) * 0x9e3779b1
                   + (hdr.ipv4.destination - 0x0a000001) * 0x85ebca77 + ports * 0xc2b2ae3d;
            mix.apply(mixed);
            switch (route.apply().action_run) {
                spread: { members.apply(); }
                default: { }
            }
        }
    }
}

#endif
