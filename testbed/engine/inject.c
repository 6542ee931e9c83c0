// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "inject.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"

/* Every packet in flight is charged to its socket until it has arrived: no limit may bind before memory
 * does, or it would be a window that nobody asked for.
 */
#define SEND_BUFFER_BYTES 2000000000
#define TIME_TO_LIVE      64

struct inject {
	int sockets, current, batched;
	int fds[64];
	struct mmsghdr messages[INJECT_BATCH];
	struct iovec vectors[INJECT_BATCH];
	uint8_t frames[INJECT_BATCH][FRAME_BYTES];
};

struct inject *inject_open(int ifindex, int sockets)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = 0, .sll_ifindex = ifindex};
	struct inject *inject = calloc(1, sizeof(*inject));
	int size = SEND_BUFFER_BYTES;

	if (!inject)
		return NULL;
	for (int i = 0; i < sockets; i++) {
		int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);

		if (fd >= 0)
			inject->fds[inject->sockets++] = fd;
		if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
		    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size))) {
			int reason = errno;

			inject_close(inject);
			errno = reason;
			return NULL;
		}
	}
	for (int i = 0; i < INJECT_BATCH; i++) {
		uint8_t *frame = inject->frames[i];
		struct ethhdr *ether = (void *)frame;
		struct iphdr *ip = (void *)(frame + sizeof(*ether));
		struct udphdr *udp = (void *)(ip + 1);

		ether->h_dest[0] = ether->h_source[0] = 2; /* locally administered */
		ether->h_proto = htons(ETH_P_IP);
		ip->version = 4;
		ip->ihl = 5;
		ip->tos = TOS_DATA;
		ip->ttl = TIME_TO_LIVE;
		ip->protocol = IPPROTO_UDP;
		udp->dest = htons(FRAME_UDP_PORT);
		inject->vectors[i] = (struct iovec){.iov_base = frame, .iov_len = FRAME_BYTES};
		inject->messages[i].msg_hdr =
			(struct msghdr){.msg_iov = &inject->vectors[i], .msg_iovlen = 1};
	}
	return inject;
}

void inject_close(struct inject *inject)
{
	for (int i = 0; i < inject->sockets; i++)
		close(inject->fds[i]);
	free(inject);
}

static uint16_t ip_checksum(const struct iphdr *ip)
{
	const uint16_t *words = (const void *)ip;
	uint32_t sum = 0;

	for (size_t i = 0; i < sizeof(*ip) / 2; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~(sum + (sum >> 16));
}

int inject_flush(struct inject *inject)
{
	int sent = 0;

	while (sent < inject->batched) {
		int n = sendmmsg(inject->fds[inject->current], inject->messages + sent,
				 (unsigned int)(inject->batched - sent), 0);

		if (n < 0 && errno != EINTR)
			return -1;
		if (n > 0)
			sent += n;
	}
	inject->batched = 0;
	return 0;
}

int inject_packet(struct inject *inject, int socket, const struct packet *packet, uint16_t entropy)
{
	uint8_t *frame;
	struct iphdr *ip;
	struct udphdr *udp;
	struct transport_header transport = {.ready_ns = packet->ready_ns,
					     .magic = FRAME_MAGIC,
					     .kind = TRANSPORT_DATA,
					     .flags = packet->flags,
					     .copy = packet->copy};
	uint32_t psn = htonl(packet->psn);
	uint16_t ip_bytes = (uint16_t)(packet->wire_bytes - sizeof(struct ethhdr));

	if ((socket != inject->current || inject->batched == INJECT_BATCH) && inject_flush(inject))
		return -1;
	inject->current = socket;
	frame = inject->frames[inject->batched++];
	ip = (void *)(frame + sizeof(struct ethhdr));
	udp = (void *)(ip + 1);
	ip->saddr = htonl(HOST_ADDRESS_BASE + packet->source);
	ip->daddr = htonl(HOST_ADDRESS_BASE + packet->destination);
	ip->tot_len = htons(ip_bytes);
	ip->check = 0;
	ip->check = ip_checksum(ip);
	udp->source = htons((uint16_t)(FRAME_ENTROPY_PORT + entropy));
	udp->len = htons((uint16_t)(ip_bytes - sizeof(*ip)));
	memcpy(frame + FRAME_PSN_OFFSET, &psn, sizeof(psn));
	memcpy(frame + FRAME_TRANSPORT_OFFSET, &transport, sizeof(transport));
	return 0;
}
