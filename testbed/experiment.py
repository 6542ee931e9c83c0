"""An experiment is data: one set of keys, whether they come from a TOML file or from the command line."""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from controller.demand import DIRECTIONS, HEADER_BYTES, MAX_HOSTS, MTU_BYTES, UNITS
from controller.errors import InputError
from controller.formats import FORMATS, TOKEN_COPIES, Chosen, Reading, detect
from controller.schedule import MODES, SCHEDULES, check_schedule, parse_schedule
from testbed.engine import cca
from testbed.topology import TOPOLOGIES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "AUTO",
    "BACKGROUND_KEYS",
    "DEMAND_KEYS",
    "DOCA_MODEL",
    "FAILURE_KEYS",
    "KEYS",
    "Background",
    "DemandPhase",
    "Experiment",
    "Key",
    "LinkFailure",
    "Run",
    "from_mapping",
    "read_toml",
    "to_toml",
]

AUTO: Final = "auto"
DOCA_MODEL: Final = "doca-model"
_MAILBOX_NS: Final = Fraction(13_200_000)
"""One mailbox send to a BlueField-3, published (facts: AtlanticBob/hpft-implementation, p50)."""
_OWN_RATES: Final = ("dcqcn", "dcqcn-paper")

Value = Any
_FEWEST_HOSTS: Final = 2


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

_CC: Final = Key(
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
    _CC,
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
    Key("memory_mib", "integer", 0, "memory of the virtual machine, at least 160; 0: estimated", "MiB", maximum=2**20),
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


@dataclass(frozen=True)
class DemandPhase:
    """A file of all-to-alls, mostly one; several form a sequence by ``after``."""

    file: Path
    name: str
    unit: str = AUTO
    token_bytes: int = 0
    after: tuple[str, ...] = ()
    format: str = AUTO
    steps: str = ""
    layers: str = ""
    ranks: int = 0
    experts_per_rank: int = 0
    placement: Path | str = ""
    source_rows: Path | str = ""
    token_copies: str = AUTO
    direction: str = "dispatch"
    combine_token_bytes: int = 0

    @property
    def is_matrix(self) -> bool:
        """Whether file, unit and token_bytes say all: no key of a trace was given, and the file is a matrix."""
        plain = DemandPhase(self.file, self.name, self.unit, self.token_bytes, self.after)
        return self == plain and self.file.is_file() and detect(self.file) in ("csv", "npy")

    @property
    def reading(self) -> Reading:
        """What is said of the file beside it. Raises InputError for steps or layers that name nothing."""
        return Reading(
            format=self.format,
            steps=Chosen.parse(self.steps, "steps"),
            layers=Chosen.parse(self.layers, "layers"),
            ranks=self.ranks,
            experts_per_rank=self.experts_per_rank,
            placement=Path(self.placement) if self.placement else None,
            source_rows=Path(self.source_rows) if self.source_rows else None,
            token_copies=self.token_copies,
        )


@dataclass(frozen=True)
class LinkFailure:
    """A link that loses what is on it from down_ns to up_ns, in ns after the start of each phase."""

    link: str
    down_ns: Fraction
    up_ns: Fraction


@dataclass(frozen=True)
class Background:
    """A constant load from one host to another, beside the demand; anew in each phase."""

    source: str
    destination: str
    bytes: int
    """On the wire."""
    rate_gbps: Fraction
    start_ns: Fraction = Fraction(0)


@dataclass(frozen=True)
class Run:
    """One run of an experiment."""

    name: str
    """As results call it: rr, rr+nscc."""
    schedule: str
    """Name of a built-in schedule, or path of a Python file."""
    cc: str
    """Name of a built-in control, or path of a Python file."""
    options: tuple[str, ...] = ()
    """Of the schedule."""

    @property
    def plan(self) -> str:
        """What controller.schedule.make_plan takes."""
        return ":".join((self.schedule, *self.options))


@dataclass(frozen=True)
class Experiment:
    """A checked experiment. Names, units and defaults as in KEYS."""

    demand: tuple[DemandPhase, ...]
    hosts: int = 0
    hosts_per_leaf: int = 0
    gpus_per_server: int = 1
    server_link_gbps: Fraction = Fraction(0)
    topology: str = "leaf-spine"
    fat_tree_k: int = 0
    link_gbps: Fraction = Fraction(800)
    link_ns: Fraction = Fraction(1000)
    link_gbps_of: dict[str, Fraction] = field(default_factory=dict)
    link_ns_of: dict[str, Fraction] = field(default_factory=dict)
    dilation: Fraction = Fraction(0)
    mtu_bytes: int = MTU_BYTES
    queue_bytes: int | str = AUTO
    trimming: bool = True
    ecn_kmin_bytes: int | str = AUTO
    ecn_kmax_bytes: int | str = AUTO
    loss_data: Fraction = Fraction(0)
    loss_ack: Fraction = Fraction(0)
    loss_recovery: str = "sack"
    schedule: tuple[str, ...] = ("rr+nscc", "rate")
    """SCHEDULE or SCHEDULE+CC."""
    cc: str = "none"
    stages: str = "barrier"
    barrier_ns: Fraction | str = AUTO
    lb: str = "ops"
    phase: str = "random"
    stage: str = "virtual"
    fabric: str = "kernel"
    links: str = "trunk"
    nic: str = "ebpf"
    control_delay_ns: Fraction = Fraction(0)
    meanwhile: str = "wait"
    start_jitter_ns: Fraction = Fraction(0)
    estimate_stale: Fraction = Fraction(0)
    estimate_error: Fraction = Fraction(0)
    seed: int = 0
    trace: bool = False
    memory_mib: int = 0
    limit_s: Fraction = Fraction(3600)
    limit_virtual_s: Fraction = Fraction(1000)
    link_failure: tuple[LinkFailure, ...] = ()
    background: tuple[Background, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """What is to be run, in the order given."""
        return tuple(self.run_of(text) for text in self.schedule)

    def run_of(self, text: str) -> Run:
        """The run that SCHEDULE or SCHEDULE+CC names."""
        planned, plus, named = text.partition("+")
        cc = named if plus else self.cc
        schedule, options = parse_schedule(planned)
        shown = ":".join((_shown(schedule), *options))
        return Run(shown if cc == "none" else f"{shown}+{_shown(cc)}", schedule, cc, options)

    def keys(self) -> dict[str, Value]:
        """All keys but the tables (demand, link_failure, background) as plain JSON values."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in _TABLES}


def _shown(name: str) -> str:
    """A file by its stem, as runs are called."""
    return Path(name).stem if name.endswith(".py") else name


_TABLES: Final = ("demand", "link_failure", "background")


def _plain(value: Value) -> Value:
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def read_toml(path: Path, *, needs_demand: bool = True) -> Experiment:
    """The experiment of a file; matrix files are looked for beside it. Raises InputError in one line."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: name the experiment file in it") from None
    except PermissionError:
        raise InputError(f"{path} may not be read: check its permissions") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text: give an experiment in TOML") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # tomllib's own error, and those of numbers and depth without end
        raise InputError(f"{path} is not TOML: {error}") from None
    return from_mapping(data, where=f"{path}: ", base=path.parent, needs_demand=needs_demand)


def from_mapping(
    data: Mapping[str, Value], *, where: str = "", base: Path = Path(), needs_demand: bool = True
) -> Experiment:
    """Checks every key and value. ``where`` starts each error line; relative files start at ``base``.

    ``needs_demand``: without one the key hosts is needed, for programs that make their own traffic.
    """
    known = {key.name: key for key in KEYS}
    values: dict[str, Value] = {}
    for name, value in data.items():
        if name in _TABLES:
            continue
        if name not in known:
            raise InputError(f"{where}{name!r} is not a key{_nearest(name, [*known, *_TABLES])}")
        values[name] = _check(known[name], value, where, base)
    if values.get("nic") == DOCA_MODEL:
        values.setdefault("control_delay_ns", _MAILBOX_NS)
    if values.get("loss_recovery") == "none":
        values.setdefault("schedule", ("rr", "rate"))  # without ACKs there is nothing to control by
    phases: tuple[DemandPhase, ...] = ()
    if needs_demand or data.get("demand"):
        phases = _phases(data.get("demand"), where, base)
    elif values.get("hosts", 0) < _FEWEST_HOSTS:
        raise InputError(f"{where}no demand, and no hosts: give hosts = N, of {_FEWEST_HOSTS} or more, or a [[demand]]")
    experiment = Experiment(
        demand=phases,
        link_failure=_failures(data.get("link_failure"), where, base),
        background=_background(data.get("background"), where, base),
        **values,
    )
    _check_together(experiment, where)
    return experiment


def _check_together(experiment: Experiment, where: str) -> None:
    names = [run.name for run in experiment.runs]
    if len(set(names)) < len(names):
        raise InputError(
            f"{where}schedule gives two runs one name: {', '.join(names)}; leave one out, or rename its file"
        )
    for name, topology in (("hosts_per_leaf", "leaf-spine"), ("fat_tree_k", "fat-tree")):
        if getattr(experiment, name) and experiment.topology != topology:
            raise InputError(f"{where}{name} is for topology {topology}, not {experiment.topology}: leave it out")
    if experiment.fat_tree_k % 2:
        raise InputError(f"{where}fat_tree_k is {experiment.fat_tree_k}: give an even number")
    if experiment.loss_recovery == "none":
        for run in experiment.runs:
            if run.cc != "none":
                raise InputError(
                    f"{where}loss_recovery is none: without ACKs {run.cc} hears nothing; give sack or timeout, or cc none"
                )
        if experiment.lb == "reps":
            raise InputError(
                f"{where}lb reps: loss_recovery is none, and without ACKs it hears of no path; give sack or timeout, or lb ops"
            )
    if experiment.server_link_gbps:
        if experiment.gpus_per_server == 1:
            raise InputError(
                f"{where}server_link_gbps is for servers of several GPUs: give gpus_per_server, or leave it out"
            )
        if experiment.nic == DOCA_MODEL:
            raise InputError(
                f"{where}server_link_gbps: there is no DPU inside servers; leave it out, or take another nic"
            )
        if experiment.stage != "virtual" or experiment.fabric != "kernel":
            raise InputError(f"{where}server_link_gbps: only stage virtual and fabric kernel have links inside servers")
    for run in experiment.runs:
        if run.schedule in SCHEDULES and SCHEDULES[run.schedule].staged and run.cc in cca.BUILT_IN:
            control = cca.load(run.cc)
            if control and control.kind == "rate":
                raise InputError(
                    f"{where}{run.name}: {run.cc} sets rates, which stages have none of; give one of windows"
                )
    if experiment.control_delay_ns and experiment.meanwhile == "old":
        for run in experiment.runs:
            if run.schedule == "rate" and run.cc != "none":
                raise InputError(
                    f"{where}meanwhile is old: {run.name} has a control, which sets rates as well; give wait, or rate alone"
                )
    if experiment.nic == DOCA_MODEL:
        for run in experiment.runs:
            if run.schedule == "rate" and run.cc in _OWN_RATES:
                raise InputError(
                    f"{where}nic {DOCA_MODEL}: {run.name} sets rates by a program of its own, and a DPU runs one; give fallback, "
                    "which it has, or nic ebpf"
                )
    if experiment.fabric == "bmv2":
        if experiment.lb == "ar":
            raise InputError(f"{where}lb ar: only the fabric kernel; give another lb, or fabric kernel")
        for name in ("loss_data", "loss_ack", "link_failure"):
            if getattr(experiment, name):
                raise InputError(f"{where}{name}: only the fabric kernel loses packets on links; leave it out")
    kmin, kmax = experiment.ecn_kmin_bytes, experiment.ecn_kmax_bytes
    if isinstance(kmin, int) and isinstance(kmax, int) and 0 < kmax < kmin:
        raise InputError(f"{where}ecn_kmin_bytes is {kmin}, above ecn_kmax_bytes {kmax}: give a smaller one")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ": see incastfree run --print-schema"


def _check(key: Key, value: Value, where: str, base: Path) -> Value:
    if key.automatic and value == AUTO:
        return value
    return _CHECKS[key.kind](key, value, where, base)


def _flag(key: Key, value: Value, where: str, _base: Path) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}{key.name} is {value!r}: give true or false")
    return value


def _text(key: Key, value: Value, where: str, _base: Path) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}{key.name} is {value!r}: give text")
    if key.choices and value not in key.choices:
        raise InputError(f"{where}{key.name} {value!r} is not known: use {' or '.join(key.choices)}")
    return _writable(value, where, key.name)


def _control(key: Key, value: Value, where: str, base: Path) -> str:
    name = _text(key, value, where, base)
    try:
        name = cca.check(name, base)
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    return _writable(name, where, key.name)


def _list(key: Key, value: Value, where: str, base: Path) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise InputError(f"{where}{key.name} is {value!r}: give a list of text")
    items = [item.strip() for item in items if item.strip()]
    if key.choices and not items:
        raise InputError(f"{where}{key.name} is empty: give one or more of {', '.join(key.choices)}")
    if len(set(items)) < len(items):
        raise InputError(f"{where}{key.name} names something twice: {', '.join(items)}")
    return tuple((_run if key.kind == "runs" else _text)(key, item, where, base) for item in items)


def _run(key: Key, value: str, where: str, base: Path) -> str:
    schedule, plus, cc = (part.strip() for part in value.partition("+"))
    try:
        schedule = _writable(check_schedule(schedule, str(base)), where, key.name)
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    return f"{schedule}+{_control(_CC, cc, where, base)}" if plus else schedule


def _numbers(key: Key, value: Value, where: str, _base: Path) -> dict[str, Fraction]:
    if not isinstance(value, dict):
        raise InputError(f"{where}{key.name} is {value!r}: give a table of links and numbers")
    return {name: _number(key, item, where, f"{key.name}.{name}") for name, item in value.items()}


def _integer(key: Key, value: Value, where: str, _base: Path) -> int:
    number = _number(key, value, where, key.name)
    if number.denominator != 1:
        raise InputError(f"{where}{key.name} is {value}: give a whole number")
    return int(number)


def _any_number(key: Key, value: Value, where: str, _base: Path) -> Fraction:
    return _number(key, value, where, key.name)


_CHECKS: Final[dict[str, Callable[[Key, Value, str, Path], Value]]] = {
    "integer": _integer,
    "number": _any_number,
    "text": _text,
    "control": _control,
    "list": _list,
    "runs": _list,
    "flag": _flag,
    "numbers": _numbers,
}


def _writable(text: str, where: str, name: str) -> str:
    """The text itself: refused, before anything runs, where experiment.toml could not say it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}{name} is {text!r}, which is not UTF-8: rename it") from None
    return text


def _number(key: Key, value: Value, where: str, name: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)) or value != value:  # noqa: PLR0124 (NaN; math.isfinite overflows on huge integers)
        raise InputError(f"{where}{name} is {value!r}: give a number{_or_auto(key)}")
    if not key.minimum <= value <= key.maximum:
        upper = f" to {_readable(key.maximum)}" if key.maximum < math.inf else " or more"
        unit = f" {key.unit}" if key.unit else ""
        raise InputError(f"{where}{name} is {value}: it must be {_readable(key.minimum)}{upper}{unit}{_or_auto(key)}")
    return value if isinstance(value, Fraction) else Fraction(str(value))


def _or_auto(key: Key) -> str:
    return ", or auto" if key.automatic else ""


def _readable(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


def _phases(tables: Value, where: str, base: Path) -> tuple[DemandPhase, ...]:
    if not tables:
        raise InputError(f"{where}no demand: give a matrix with [[demand]] file = ... or --demand FILE")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}demand must be tables: write [[demand]] and file = ... below it")
    known = {key.name: key for key in DEMAND_KEYS}
    phases: list[DemandPhase] = []
    for number, table in enumerate(tables, 1):
        at = f"{where}demand {number}: "
        for name in table:
            if name not in known:
                raise InputError(f"{at}{name!r} is not a key{_nearest(name, list(known))}")
        values = {name: _check(known[name], value, at, base) for name, value in table.items()}
        if not values.get("file"):
            raise InputError(f"{at}no file: name the matrix file")
        for each in ("file", "placement", "source_rows"):
            if values.get(each):
                values[each] = base / values[each]
                _writable(str(values[each].absolute()), at, each)
        values["name"] = values.get("name") or str(number)
        phase = DemandPhase(**values)
        try:
            _ = phase.reading
        except InputError as error:
            raise InputError(f"{at}{error}") from None
        phases.append(phase)
    return _ordered(phases, where)


def _tables(
    name: str, tables: Value, keys: Sequence[Key], where: str, base: Path
) -> list[tuple[str, dict[str, Value], dict[str, Any]]]:
    """Of each [[name]]: how an error names it, what stands there, and its values, checked one by one."""
    needed = [key.name for key in keys if key.default is None]
    if tables is None:
        return []
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}{name} must be tables: write [[{name}]], and {', '.join(needed)} below it")
    known = {key.name: key for key in keys}
    checked: list[tuple[str, dict[str, Value], dict[str, Any]]] = []
    for number, table in enumerate(tables, 1):
        at = f"{where}{name} {number}: "
        for key in table:
            if key not in known:
                raise InputError(f"{at}{key!r} is not a key{_nearest(key, list(known))}")
        values = {key: _check(known[key], value, at, base) for key, value in table.items()}
        missing = [key for key in needed if key not in values]
        if missing:
            raise InputError(f"{at}no {missing[0]}: give {', '.join(needed)}")
        checked.append((at, table, values))
    return checked


def _failures(tables: Value, where: str, base: Path) -> tuple[LinkFailure, ...]:
    failures: list[LinkFailure] = []
    for at, table, values in _tables("link_failure", tables, FAILURE_KEYS, where, base):
        failure = LinkFailure(**values)
        if failure.up_ns <= failure.down_ns:
            raise InputError(f"{at}up_ns is {table['up_ns']}: it must be above down_ns, {table['down_ns']}")
        if any(other.link == failure.link for other in failures):
            raise InputError(f"{at}{failure.link} fails twice, which is not supported: give one interval")
        failures.append(failure)
    return tuple(failures)


def _background(tables: Value, where: str, base: Path) -> tuple[Background, ...]:
    flows: list[Background] = []
    for at, _, values in _tables("background", tables, BACKGROUND_KEYS, where, base):
        flow = Background(**values)
        if flow.source == flow.destination:
            raise InputError(f"{at}{flow.source} sends to itself: name another destination")
        flows.append(flow)
    return tuple(flows)


def _ordered(phases: list[DemandPhase], where: str) -> tuple[DemandPhase, ...]:
    """In an order in which each comes after those it waits for, which must leave no choice."""
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):
        raise InputError(f"{where}two demand phases have one name: {', '.join(names)}")
    for phase in phases:
        for other in phase.after:
            if other not in names:
                known = ", ".join(names)
                raise InputError(
                    f"{where}demand {phase.name}: after names {other!r}, which is no phase: there are {known}"
                )
    done: list[DemandPhase] = []
    while len(done) < len(phases):
        ready = [p for p in phases if p not in done and set(p.after) <= {d.name for d in done}]
        if not ready:
            raise InputError(f"{where}the demand phases wait for each other in a circle: break it")
        if len(ready) > 1:
            raise InputError(
                f"{where}demand phases {ready[0].name} and {ready[1].name} would run at the same time, which is not "
                "supported: chain them with after"
            )
        done += ready
    return tuple(done)


def _quoted(value: Value) -> str:
    """As JSON, which is TOML too if nothing beyond 16 bits is escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def to_toml(experiment: Experiment) -> str:
    """The experiment as a file that runs it again from anywhere: matrix paths are absolute."""
    lines = [
        f"{name} = {_quoted(value)}"
        for name, value in experiment.keys().items()
        if not isinstance(value, dict) and value != ""
    ]
    for name, value in experiment.keys().items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{name}]", *(f"{_quoted(link)} = {_quoted(item)}" for link, item in value.items())]
    for failure in experiment.link_failure:
        lines += ["", "[[link_failure]]", f"link = {_quoted(failure.link)}"]
        lines += [f"down_ns = {_plain(failure.down_ns)}", f"up_ns = {_plain(failure.up_ns)}"]
    for flow in experiment.background:
        lines += ["", "[[background]]"]
        lines += [f"{f.name} = {_quoted(_plain(getattr(flow, f.name)))}" for f in fields(flow)]
    for phase in experiment.demand:
        lines += ["", "[[demand]]", f"name = {_quoted(phase.name)}", f"file = {_quoted(str(phase.file.resolve()))}"]
        lines += [f"unit = {_quoted(phase.unit)}"]
        for key in DEMAND_KEYS:
            value = getattr(phase, key.name)
            if key.name not in ("name", "file", "unit", "after") and value != key.default:
                lines += [f"{key.name} = {_quoted(str(value.resolve()) if isinstance(value, Path) else value)}"]
        lines += [f"after = {_quoted(list(phase.after))}"] if phase.after else []
    return "\n".join(lines) + "\n"
