/* SPDX-License-Identifier: Apache-2.0 */
/* The testbed's switch for BMv2 (v1model): what ebpf/fabric/ does in the kernel, on a software switch.
 *
 *              +--------- ingress ------------------------------+              +--- egress ------------------+
 *   parser --> | identity -> route -> spread -> member          | --> queues ->| mark -> occupancy, counters | --> deparser
 *              |                        \-> occupancy -> trim   |   (2 priorities, rate a port)              |
 *              +------------------------------------------------+              +-----------------------------+
 *
 * identity  what holds for all packets of a switch: the salts of its hashes, whether it trims (default action, set once)
 * route     destination host -> one port, or a group: first member and number of ways
 * spread    the group's member, by the same hash of five-tuple and salt as the kernel's (equal-cost multipath)
 * member    place in a group -> port
 * trim      a queue of data as deep as its limit: the payload goes, the header becomes control; without trimming, and of
 *           what is no frame of the engine, the packet is dropped and counted
 * mark      ECN at dequeue, linear from kmin to kmax, by a hash of (salt, port, number of the packet)
 *
 * Queue rate and depth are not P4's: they are set over Thrift (testbed/fabric/bmv2/thrift.py). BMv2 knows the depth of a
 * queue at its egress alone, so that ingress counts what it sent to each port, and egress what came out of it.
 */
#include <core.p4>
#include <v1model.p4>

#include "headers.p4"
#include "hash.p4"
#include "parser.p4"
#include "forward.p4"
#include "queue.p4"

control FabricIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Forward() forward;
    Trim() trim;

    apply {
        forward.apply(hdr, meta, standard);
        if (meta.forwarded == 1) {
            trim.apply(hdr, meta, standard);
        }
    }
}

control FabricEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Mark() mark;

    apply {
        mark.apply(hdr, meta, standard);
    }
}

V1Switch(FabricParser(), FabricVerifyChecksum(), FabricIngress(), FabricEgress(), FabricUpdateChecksum(),
         FabricDeparser()) main;
