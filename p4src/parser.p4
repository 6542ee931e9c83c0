/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PARSER_P4
#define PARSER_P4

#include "headers.p4"

parser FabricParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    /* Whatever the protocol, as in the kernel: what stands there is hashed. */
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl) {
            (4, 5): l4_ports;
            default: accept;
        }
    }
    state l4_ports {
        packet.extract(hdr.l4_ports);
        transition select(hdr.ipv4.protocol, hdr.l4_ports.destination) {
            (PROTOCOL_UDP, FRAME_UDP_PORT): transport;
            default: accept;
        }
    }
    state transport {
        packet.extract(hdr.udp_rest);
        packet.extract(hdr.transport);
        transition accept;
    }
}

control FabricVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control FabricUpdateChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        /* Only of what was changed here: a wrong checksum is the receiver's to find. */
        update_checksum(
            meta.restamped == 1,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FabricDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

#endif
