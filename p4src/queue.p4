/* SPDX-License-Identifier: Apache-2.0 */
/* Priority, trimming and drops before the queue, marking behind it. */
#ifndef QUEUE_P4
#define QUEUE_P4

#include "hash.p4"
#include "headers.p4"

/* Packets of data on their way through a port: what ingress sent there, less what egress has seen of it. A pair, since
 * either pipeline may only write its own.
 */
register<bit<32>>(MAX_PORTS) data_in;
register<bit<32>>(MAX_PORTS) data_out;
/* Packets of data that a port holds at most, the one in service counted: 0, as it is before it is written, is unlimited.
 * BMv2 takes a packet out of its queue when it begins to serve it, so that of a limit of n, n - 1 may wait. (Whether one
 * is in service it does not say: a limit of 1 is as one of 2.)
 */
register<bit<32>>(MAX_PORTS) queue_limit;

counter(MAX_PORTS, CounterType.packets) trims;
counter(MAX_PORTS, CounterType.packets) drops;
counter(MAX_PORTS, CounterType.packets) marks;
counter(MAX_PORTS, CounterType.packets) control_packets;

control Trim(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    bit<32> port;
    bit<32> sent;
    bit<32> left;
    bit<32> limit;

    apply {
        port = (bit<32>)standard.egress_spec;
        if (hdr.ipv4.dscp >= DSCP_CONTROL) {
            standard.priority = PRIORITY_CONTROL;
            control_packets.count(port);
        } else {
            standard.priority = PRIORITY_DATA;
            queue_limit.read(limit, port);
            data_in.read(sent, port);
            data_out.read(left, port);
            if (limit == 0 || sent == left || sent - left + 1 < limit) {
                data_in.write(port, sent + 1);
            } else if (meta.trimming == 1 && hdr.transport.isValid() && hdr.transport.magic == FRAME_MAGIC) {
                trims.count(port);
                control_packets.count(port);
                standard.priority = PRIORITY_CONTROL;
                hdr.ipv4.dscp = DSCP_TRIMMED;
                hdr.ipv4.ecn = 0;
                hdr.ipv4.total_length = CONTROL_BYTES - FRAME_ETHERNET_BYTES;
                hdr.udp_rest.length = CONTROL_BYTES - UDP_OFFSET;
                meta.restamped = 1;
                truncate(FRAME_BYTES);
            } else {
                /* The transport of a real program knows of no trimming. Not left to BMv2's own queues: what they drop, nothing
                 * counts.
                 */
                drops.count(port);
                mark_to_drop(standard);
            }
        }
    }
}

/* In packets, since BMv2 counts its queues in packets; kmax 0, as it is before it is written: no marks. */
register<bit<32>>(1) ecn_kmin;
register<bit<32>>(1) ecn_kmax;

control Mark(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Mix32() mix_port;
    Mix32() mix_number;
    bit<32> port;
    bit<32> number;
    bit<32> kmin;
    bit<32> kmax;
    bit<32> behind;
    bit<32> draw;

    apply {
        if (hdr.ipv4.isValid() && hdr.ipv4.dscp < DSCP_CONTROL) {
            port = (bit<32>)standard.egress_port;
            data_out.read(number, port);
            data_out.write(port, number + 1);
            ecn_kmin.read(kmin, 0);
            ecn_kmax.read(kmax, 0);
            behind = (bit<32>)standard.deq_qdepth;
            if (kmax != 0 && behind > kmin) {
                draw = meta.mark_salt + port;
                mix_port.apply(draw);
                draw = draw + number;
                mix_number.apply(draw);
                if (behind > kmax
                    || (bit<64>)draw * (bit<64>)(kmax - kmin) < ((bit<64>)(behind - kmin) << 32)) {
                    /* Counted as in the kernel, whether the packet can carry the mark or not. */
                    marks.count(port);
                    if (hdr.ipv4.ecn == ECN_CAPABLE) {
                        hdr.ipv4.ecn = ECN_MARK;
                        meta.restamped = 1;
                    }
                }
            }
        }
    }
}

#endif
