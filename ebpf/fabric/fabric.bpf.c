// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The testbed's in-kernel fabric: one object, so that all its programs share one set of ports.
 *
 *   engine -> inject -> nic_egress -[fq]-> switch_ingress -> switch_egress -[fq]-> ... -> nic_ingress
 */
#include "host.h"
#include "switch.h"

char LICENSE[] SEC("license") = "GPL";
