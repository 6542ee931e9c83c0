"""The keys of an experiment: their units, ranges, choices and defaults, and what each is for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from controller.demand import DIRECTIONS, HEADER_BYTES, MAX_HOSTS, MTU_BYTES, UNITS
from controller.formats import FORMATS, TOKEN_COPIES
from controller.schedule import MODES, SCHEDULES
from testbed.engine import cca
from testbed.topology import TOPOLOGIES

__all__ = [
    "AUTO",
    "BACKGROUND_KEYS",
    "CC",
    "DEMAND_KEYS",
    "DOCA_MODEL",
    "FAILURE_KEYS",
    "KEYS",
    "LEAST_MEMORY_MIB",
    "TABLES",
    "Key",
    "Value",
]

AUTO: Final = "auto"
DOCA_MODEL: Final = "doca-model"
LEAST_MEMORY_MIB: Final = 160

Value = Any

TABLES: Final = ("demand", "link_failure", "background")
"""What may stand beside the keys: lists of tables, with keys of their own."""


@dataclass(frozen=True)
class Key:
    """One key: how its value is checked, and what the documentation says of it."""

    name: str
    kind: str
    """integer, number, text, control (of congestion), list (of text), runs (SCHEDULE[+CC]), flag, or numbers (of names)."""
    default: Value
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = math.inf
    automatic: bool = False
    """The text "auto" is a value too."""


DEMAND_KEYS: Final = (
    Key("name", "text", "", "what later phases call this one; default: its place, from 1"),
    Key(
        "file",
        "text",
        None,
        "matrix (row = sender) or trace of a framework: a file, a folder or a pattern of ranks' files",
    ),
    Key(
        "unit",
        "text",
        AUTO,
        "what an entry counts; bytes are payload; auto: what the format says, else bytes",
        choices=(AUTO, *UNITS),
    ),
    Key("token_bytes", "integer", 0, "payload of one token, with unit tokens", "B", maximum=2**31),
    Key("after", "list", (), "phases that must have ended everywhere before this one starts"),
    Key("format", "text", AUTO, "what the file is; auto: by its content (docs/formats.md)", choices=FORMATS),
    Key("steps", "text", "", "steps of a trace, such as 3 or 0:10 (0 to 9), each a phase; all if left out"),
    Key("layers", "text", "", "layers of a trace, likewise"),
    Key("ranks", "integer", 0, "ranks of a trace; 0: as many as it shows", maximum=MAX_HOSTS),
    Key(
        "experts_per_rank", "integer", 0, "experts of each rank, contiguous; 0: the trace says how many", maximum=2**20
    ),
    Key("placement", "text", "", "JSON or .pt file with the rank of each expert, or physical_to_logical_map"),
    Key("source_rows", "text", "", "file with what each rank sends, where the trace has receivers alone"),
    Key(
        "token_copies",
        "text",
        AUTO,
        "a token for two experts on one rank counts twice or once; auto: as the format sends it",
        choices=TOKEN_COPIES,
    ),
    Key(
        "direction",
        "text",
        "dispatch",
        "as the file has it; combine: the other way; both: each demand, then its combine",
        choices=DIRECTIONS,
    ),
    Key("combine_token_bytes", "integer", 0, "payload of a token on its way back; 0: token_bytes", "B", maximum=2**31),
)

FAILURE_KEYS: Final = (
    Key("link", "text", None, "which fails, in both directions, such as h3, leaf1-spine2 or agg1-core3"),
    Key("down_ns", "number", None, "from when on packets on it are lost", "ns", maximum=1e12),
    Key("up_ns", "number", None, "and until when", "ns", maximum=1e12),
)

BACKGROUND_KEYS: Final = (
    Key("source", "text", None, "host that sends, such as h3"),
    Key("destination", "text", None, "host that it sends to"),
    Key("bytes", "integer", None, "how much, on the wire", "B", minimum=HEADER_BYTES, maximum=2**50),
    Key("rate_gbps", "number", None, "how fast, whatever the network answers", "Gb/s", minimum=0.001, maximum=100_000),
    Key("start_ns", "number", 0, "from when on, in each phase", "ns", maximum=1e12),
)

CC: Final = Key(
    "cc",
    "control",
    "none",
    f"congestion control of the runs that name none: {', '.join(cca.BUILT_IN)}, or a Python file",
)

KEYS: Final = (
    Key("hosts", "integer", 0, "number of hosts; 0: from the demand", maximum=MAX_HOSTS),
    Key("hosts_per_leaf", "integer", 0, "hosts on a leaf, and spines; 0: 8, or 4 up to 16 hosts", maximum=64),
    Key("gpus_per_server", "integer", 1, "hosts in a server; traffic inside a server is local", minimum=1, maximum=64),
    Key(
        "server_link_gbps",
        "number",
        0,
        "speed of each GPU's link inside its server, for schedules that move data there (fast, dfs); 0: moves take no time",
        "Gb/s",
        maximum=100_000,
    ),
    Key("topology", "text", "leaf-spine", "shape of the network", choices=tuple(TOPOLOGIES)),
    Key(
        "fat_tree_k",
        "integer",
        0,
        "ports of a fat tree's switches, even; 0: the smallest that holds the hosts",
        maximum=64,
    ),
    Key("link_gbps", "number", 800, "speed of every link", "Gb/s", minimum=0.001, maximum=100_000),
    Key("link_ns", "number", 1000, "propagation delay of every link", "ns", maximum=10_000_000),
    Key(
        "link_gbps_of",
        "numbers",
        {},
        "exceptions by link, such as h3, leaf1-spine2 or agg1-core3",
        "Gb/s",
        minimum=0.001,
        maximum=100_000,
    ),
    Key("link_ns_of", "numbers", {}, "exceptions by link", "ns", maximum=10_000_000),
    Key(
        "dilation",
        "number",
        0,
        "kernel time over fabric time; 0: chosen so that times are whole, and in real time so that this machine keeps up",
        maximum=1e9,
    ),
    Key(
        "mtu_bytes",
        "integer",
        MTU_BYTES,
        "largest packet on the wire, headers included",
        "B",
        minimum=2 * HEADER_BYTES,
        maximum=9216,
    ),
    Key(
        "queue_bytes",
        "integer",
        AUTO,
        "limit of a switch port's queue; 0: unlimited; auto: the bandwidth-delay product, five of them without trimming",
        "B",
        maximum=2**40,
        automatic=True,
    ),
    Key(
        "trimming",
        "flag",
        True,
        "a packet that finds a full queue loses its payload only; the receiver asks for it again",
    ),
    Key(
        "ecn_kmin_bytes",
        "integer",
        AUTO,
        "queue above which packets are marked at random, when they leave it; auto: a fifth of the bandwidth-delay product",
        "B",
        maximum=2**31,
        automatic=True,
    ),
    Key(
        "ecn_kmax_bytes",
        "integer",
        AUTO,
        "queue above which every packet is marked; 0: no marks; auto: four fifths of the product",
        "B",
        maximum=2**31,
        automatic=True,
    ),
    Key("loss_data", "number", 0, "probability that a data packet is lost on its first link", maximum=0.99),
    Key("loss_ack", "number", 0, "probability that an ACK or NACK is", maximum=0.99),
    Key(
        "loss_recovery",
        "text",
        "sack",
        "how losses are found that no NACK reports; none: open loop, nothing is acknowledged",
        choices=("sack", "timeout", "none"),
    ),
    Key(
        "schedule",
        "runs",
        ("rr+nscc", "rate"),
        "runs, side by side, one a processor: SCHEDULE or SCHEDULE+CC, such as rr+nscc; in an open loop rr,rate. A schedule may "
        "have options, such as rate:0.98 or bvn:any:clock, or be a Python file (docs/schedules.md)",
        choices=tuple(SCHEDULES),
    ),
    CC,
    Key(
        "stages",
        "text",
        "barrier",
        "when senders go on to the next stage of runs that do not say it themselves (bvn:clock): when all of the one before it "
        "has come everywhere, at its planned time, or when they are through",
        choices=MODES,
    ),
    Key(
        "barrier_ns",
        "number",
        AUTO,
        "from when all of a stage has come until all senders know; auto: half of the base round-trip time",
        "ns",
        maximum=1e9,
        automatic=True,
    ),
    Key(
        "lb",
        "text",
        "ops",
        "load balancing: packet spraying, oblivious or by what ACKs prove good; one path a flow; or the emptiest uplink",
        choices=("ops", "reps", "ecmp", "ar"),
    ),
    Key("phase", "text", "random", "where in its gap a paced flow starts", choices=("random", "zero", "golden")),
    Key(
        "stage",
        "text",
        "virtual",
        "where it runs: in a kernel of its own, in virtual time; or in this one, as root, in real time",
        choices=("virtual", "host"),
    ),
    Key(
        "fabric",
        "text",
        "kernel",
        "what the switches are: eBPF in the kernel, or a process of BMv2 each, with P4",
        choices=("kernel", "bmv2"),
    ),
    Key(
        "links",
        "text",
        "trunk",
        "one interface for all links, or a pair of them for each, slower: there ACKs are packets of their own; with BMv2 and "
        "in real time they are pairs of veth whatever is given",
        choices=("trunk", "pairs"),
    ),
    Key(
        "nic",
        "text",
        "ebpf",
        "what paces: the eBPF NIC, or a DPU's own code with 20-bit rates and a mailbox (docs/doca.md)",
        choices=("ebpf", DOCA_MODEL),
    ),
    Key(
        "control_delay_ns",
        "number",
        0,
        "between the demand known and its plan in force, of runs of schedule rate or of stages; with nic doca-model 13.2e6, one mailbox "
        "send of a DPU, unless it is given",
        "ns",
        maximum=1e9,
    ),
    Key(
        "meanwhile",
        "text",
        "wait",
        "what paced senders do until then: wait, or send at the rates of the phase before (in the first they wait)",
        choices=("wait", "old"),
    ),
    Key("start_jitter_ns", "number", 0, "each sender starts at random up to this late", "ns", maximum=1e9),
    Key(
        "estimate_stale",
        "number",
        0,
        "plans are made from an estimate of the demand, of which this share is that of an older one with other favourites",
        maximum=1,
    ),
    Key(
        "estimate_error",
        "number",
        0,
        "plans are made from an estimate in which each flow is at random larger or smaller by this share of it",
        maximum=1,
    ),
    Key("seed", "integer", 0, "of everything random", maximum=2**32 - 1),
    Key("trace", "flag", False, "also write every packet's hops (trace.parquet)"),
    Key(
        "memory_mib",
        "integer",
        0,
        f"memory of the virtual machine, at least {LEAST_MEMORY_MIB}; 0: estimated",
        "MiB",
        maximum=2**20,
    ),
    Key("limit_s", "number", 3600, "wall time after which a run is given up", "s", minimum=1, maximum=10_000_000),
    Key(
        "limit_virtual_s",
        "number",
        1000,
        "exec: time on the programs' own clock, fabric time times the dilation, after which they are given up",
        "s",
        minimum=0.001,
        maximum=1e9,
    ),
)
