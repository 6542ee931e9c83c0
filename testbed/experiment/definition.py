"""What a checked experiment is: its keys, its phases of demand, its runs, and what happens beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path

from controller.demand import MTU_BYTES
from controller.formats import Chosen, Reading, detect
from controller.schedule import parse_schedule
from testbed.experiment.keys import AUTO, TABLES, Value

__all__ = ["Background", "DemandPhase", "Experiment", "LinkFailure", "Run", "plain"]


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
        bare = DemandPhase(self.file, self.name, self.unit, self.token_bytes, self.after)
        return self == bare and self.file.is_file() and detect(self.file) in ("csv", "npy")

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
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in TABLES}


def _shown(name: str) -> str:
    """A file by its stem, as runs are called."""
    return Path(name).stem if name.endswith(".py") else name


def plain(value: Value) -> Value:
    """As JSON and TOML can say it."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
