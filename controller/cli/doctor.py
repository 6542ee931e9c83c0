"""``incastfree doctor``: what works on this machine, and what would make the rest work."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from controller.errors import CannotRunError

__all__ = ["Check", "controller_checks"]

HELP: Final = "say what works on this machine, and what would make the rest work"
ENTRY_POINTS: Final = "incastfree.checks"
_NO_FQ: Final = "{} has none: modprobe sch_fq, or a kernel with CONFIG_NET_SCH_FQ (Debian's has it)"


@dataclass(frozen=True)
class Check:
    """One finding."""

    what: str
    works: bool
    detail: str
    """What was found; where it does not work, the command or change that would help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(arguments: argparse.Namespace) -> int:
    """0, whatever is missing: a missing part is an answer, not an error."""
    del arguments
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        print(f"{point.name}:")
        try:
            checks = cast(Callable[[], Iterator[Check]], point.load())
        except ImportError as error:
            print(f"  missing  all of it: needs the Python package {error.name}")
            continue
        for check in checks():
            print(f"  {'works  ' if check.works else 'missing'}  {check.what}: {check.detail}")
    return 0


def controller_checks() -> Iterator[Check]:
    """The controller and its eBPF NIC backend."""
    try:
        import numpy as np

        yield Check("rates", True, f"numpy {np.__version__}")
    except ImportError:
        yield Check("rates", False, "pip install numpy")
    yield _native_check()
    from controller.nic.ebpf import OBJECT
    from controller.nic.libbpf import library_name

    try:
        yield Check("libbpf", True, library_name())
    except CannotRunError as error:
        yield Check("libbpf", False, str(error))
    yield Check("pacer object", OBJECT.is_file(), str(OBJECT) if OBJECT.is_file() else "run make setup")
    yield Check(
        "loading a NIC (load, show, unload)",
        os.geteuid() == 0,
        "you are root" if os.geteuid() == 0 else "run as root (sudo): eBPF and tc need it",
    )
    mounted = os.path.ismount("/sys/fs/bpf")
    yield Check("BPF file system", mounted, "/sys/fs/bpf" if mounted else "mount -t bpf bpf /sys/fs/bpf")
    try:
        import bcc

        yield Check("bcc (live counters in show)", True, f"python3-bpfcc {bcc.__version__}")
    except ImportError:
        yield Check(
            "bcc (live counters in show)", False, "apt-get install python3-bpfcc, in a venv with system packages"
        )
    found = _qdisc("fq")
    yield Check("sch_fq in this kernel", found, platform.release() if found else _NO_FQ.format(platform.release()))
    tc = shutil.which("tc") or ("/usr/sbin/tc" if os.path.exists("/usr/sbin/tc") else None)
    yield Check("tc", tc is not None, tc or "apt-get install iproute2")
    from controller.nic.doca import LIBRARY

    found = LIBRARY.is_file()
    yield Check(
        "DPUs (load --nic doca)",
        found,
        str(LIBRARY) if found else "make -C dpu, where NVIDIA's DOCA SDK is (docs/doca.md)",
    )


def _native_check() -> Check:
    from controller import native

    if native.part is not None:
        return Check("the same in C", True, str(native.part.__file__))
    return Check(
        "the same in C",
        False,
        f"{native.MISSING}: NumPy computes the same, in more time; for less apt-get install gcc python3-dev, "
        "and install incastfree again",
    )


def _qdisc(kind: str) -> bool:
    """Built in or a module, as far as files tell."""
    release = platform.release()
    modules = Path("/lib/modules") / release
    if any(modules.glob(f"kernel/net/sched/sch_{kind}.ko*")):
        return True
    try:
        return f"sch_{kind}.ko" in (modules / "modules.builtin").read_text()
    except OSError:
        pass
    try:
        return (
            f"{kind}_" in Path("/proc/kallsyms").read_text()
            and f"{kind}_qdisc_ops" in Path("/proc/kallsyms").read_text()
        )
    except OSError:
        return False
