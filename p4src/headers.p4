/* SPDX-License-Identifier: Apache-2.0 */
/* Headers, sizes and ids; those of ebpf/include/frame.h have its names. */
#ifndef HEADERS_P4
#define HEADERS_P4

typedef bit<48> mac_t;
typedef bit<32> address_t;
typedef bit<9> port_t;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> FRAME_UDP_PORT = 4793;
const bit<32> FRAME_MAGIC = 0x49524649;   /* 0x49465249 as the sender writes it, least significant byte first */

const bit<16> FRAME_ETHERNET_BYTES = 14;
const bit<32> FRAME_BYTES = 86;
const bit<16> CONTROL_BYTES = 64;
const bit<16> UDP_OFFSET = 34;

/* DSCP and ECN (RFC 2474, RFC 3168). */
const bit<2> ECN_CAPABLE = 2;
const bit<2> ECN_MARK = 3;
const bit<6> DSCP_CONTROL = 48;           /* from here on: strict priority */
const bit<6> DSCP_TRIMMED = 50;

const bit<3> PRIORITY_DATA = 0;
const bit<3> PRIORITY_CONTROL = 1;

#define MAX_PORTS 512
#define MAX_HOSTS 1024
#define MAX_MEMBERS 1024

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> ethertype;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    address_t source;
    address_t destination;
}

/* What UDP and TCP begin with; of other protocols, whatever stands there. */
header l4_ports_t {
    bit<16> source;
    bit<16> destination;
}

header udp_rest_t {
    bit<16> length;
    bit<16> checksum;
}

/* struct transport_header of ebpf/include/frame.h, after the PSN. Only the magic is read; a packet that has not all of it is
 * no frame of the engine.
 */
header transport_t {
    bit<32> psn;
    bit<64> ready_ns;
    bit<32> magic;
    bit<8> kind;
    bit<8> flags;
    bit<8> copy;
    bit<8> reserved;
    bit<192> answer;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    l4_ports_t l4_ports;
    udp_rest_t udp_rest;
    transport_t transport;
}

struct metadata_t {
    bit<32> path_salt;
    bit<32> mark_salt;
    bit<32> member;
    bit<1> trimming;
    bit<1> forwarded;
    bit<1> restamped;
}

#endif
