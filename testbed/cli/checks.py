"""The testbed's part of ``incastfree doctor``."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from controller.cli.doctor import Check
from controller.errors import CannotRunError
from testbed.fabric import KERNEL_OBJECT, KERNEL_OBJECTS
from testbed.fabric.bmv2 import installation
from testbed.fabric.bmv2.thrift import load_bindings
from testbed.stage.host.checks import missing
from testbed.stage.virtual import kernel

__all__ = ["testbed_checks"]


def testbed_checks() -> Iterator[Check]:
    """Stages and fabrics."""
    try:
        built = kernel.find()
        yield Check("virtual-time kernel", True, f"{built.version}, {built.path}")
    except CannotRunError as error:
        yield Check("virtual-time kernel", False, str(error))
    try:
        from testbed.engine import _engine

        yield Check("engine", True, str(Path(_engine.__file__)))
    except ImportError:
        yield Check("engine", False, "run make setup")
    compiled = _is_compiled()
    yield Check("kernel fabric", compiled, str(KERNEL_OBJECT) if compiled else "run make setup")
    try:
        import mininet.net

        yield Check("mininet", True, str(Path(mininet.net.__file__).parent))
    except ImportError:
        yield Check(
            "mininet", False, "apt-get install mininet, in a virtual environment with system packages: run make setup"
        )
    for name in ("pyarrow", "matplotlib"):
        try:
            module = __import__(name)
            yield Check(f"results ({name})", True, str(module.__version__))
        except ImportError:
            yield Check(f"results ({name})", False, "run make setup")
    scope = _ptrace_scope()
    yield Check(
        "ptrace of own children",
        scope < 3,
        f"kernel.yama.ptrace_scope is {scope}" + ("" if scope < 3 else ": set it below 3"),
    )
    shared = shutil.disk_usage("/dev/shm").free >> 20 if os.path.isdir("/dev/shm") else 0
    yield Check("guest memory", shared >= 1024, f"{shared} MiB free in /dev/shm; 512 hosts need about 2,000")
    yield Check("stage virtual", _all_there(), "the parts above" if _all_there() else "see what is missing above")
    lacking = missing()
    yield Check("stage host", not lacking and _parts_there(), _host_detail(lacking))
    yield _bmv2()


def _bmv2() -> Check:
    """The switches' program, and what programs them."""
    try:
        found = installation.find()
        if found is None:
            return Check("fabric bmv2", False, installation.NEEDED)
        import testbed.fabric.bmv2.bindings  # noqa: F401

        load_bindings(found.python_paths)
        return Check("fabric bmv2", True, f"BMv2 {found.version()}, {found.program}")
    except CannotRunError as error:
        return Check("fabric bmv2", False, str(error))


def _ptrace_scope() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except OSError:
        return 0


def _all_there() -> bool:
    try:
        kernel.find()
    except CannotRunError:
        return False
    return _parts_there() and _ptrace_scope() < 3


def _parts_there() -> bool:
    """What any stage needs."""
    try:
        import mininet.net  # noqa: F401

        from testbed.engine import _engine  # noqa: F401
    except ImportError:
        return False
    return _is_compiled()


def _is_compiled() -> bool:
    return all(path.is_file() for path in KERNEL_OBJECTS)


def _host_detail(lacking: list[str]) -> str:
    if lacking:
        return "; ".join(lacking)
    return f"real time, kernel {platform.release()}" if _parts_there() else "see what is missing above"
