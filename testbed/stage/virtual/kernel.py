"""The virtual-time kernel: builds it from Debian's source, keeps it in the user's cache, finds it again.

``python -m testbed.stage.virtual.kernel build`` is what ``make`` calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError

__all__ = ["EDITS", "Edit", "Kernel", "apply_edits", "build", "cache_folder", "find"]

SOURCE: Final = Path("/usr/src/linux-source-6.12.tar.xz")
CONFIG: Final = Path(__file__).with_name("kernel.config")
_MAKE: Final = ("make", "ARCH=um", "SUBARCH=x86_64", "KCFLAGS=-mcmodel=small")
"""The large code model that um asks for makes every call indirect; modules need it, and there are none."""
_PROGRESS_S: Final = 15
_OBJECTS_EXPECTED: Final = 690
"""Compilations of one build, roughly: for the progress line alone."""


@dataclass(frozen=True)
class Edit:
    """One replacement in the kernel's source. ``old`` must stand there exactly once."""

    file: str
    old: str
    new: str
    why: str


EDITS: Final = (
    Edit(
        "arch/um/include/linux/time-internal.h",
        "#define TIMER_MULTIPLIER 256",
        "#define TIMER_MULTIPLIER 1",
        "the clock counts single nanoseconds, and reading it costs one",
    ),
    Edit(
        "arch/um/include/linux/time-internal.h",
        "#define TIMER_MIN_DELTA  500",
        "#define TIMER_MIN_DELTA  1",
        "a timer may fire one nanosecond from now",
    ),
    Edit(
        "arch/um/kernel/time.c",
        "\tdelta += 1;\n\n\tif (time_travel_mode != TT_MODE_OFF) {\n\t\ttime_travel_del_event",
        "\tif (time_travel_mode == TT_MODE_OFF)\n\t\tdelta += 1;\n\n"
        "\tif (time_travel_mode != TT_MODE_OFF) {\n\t\ttime_travel_del_event",
        "in virtual time a timer fires when it is due, not a nanosecond later",
    ),
)


@dataclass(frozen=True)
class Kernel:
    """A built kernel."""

    path: Path
    version: str
    key: str
    """Hash of source, configuration, flags and edits: results carry it."""


def cache_folder() -> Path:
    """Where built kernels are kept: $XDG_CACHE_HOME/incastfree or ~/.cache/incastfree."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "incastfree"


def recipe_hash() -> str:
    """Hash of configuration, flags and edits: all of a kernel's key that this project decides."""
    digest = hashlib.sha256(CONFIG.read_bytes())
    digest.update("\0".join(_MAKE).encode())
    for edit in EDITS:
        digest.update(f"{edit.file}\0{edit.old}\0{edit.new}\0".encode())
    return digest.hexdigest()


def find() -> Kernel:
    """The newest built kernel that has our configuration and edits. Raises CannotRunError without one."""
    wanted = recipe_hash()
    found: list[tuple[float, Kernel]] = []
    for description in (cache_folder() / "kernel").glob("*/build.json"):
        try:
            build_info = json.loads(description.read_text())
            if build_info["recipe"] == wanted and description.with_name("linux").is_file():
                kernel = Kernel(description.with_name("linux"), build_info["version"], build_info["key"])
                found.append((build_info["built"], kernel))
        except (OSError, ValueError, KeyError):
            continue  # half written, or of another layout: as good as absent
    if not found:
        raise CannotRunError(
            f"the virtual-time kernel (with its {len(EDITS)} clock edits) was not built for this user: run make setup"
        )
    return max(found, key=lambda item: item[0])[1]


def apply_edits(tree: Path) -> None:
    """Makes the edits in an unpacked source. Raises CannotRunError where the source is not as expected."""
    for edit in EDITS:
        path = tree / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise CannotRunError(
                f"{edit.file} of {SOURCE.name} has changed where it must be edited ({edit.why}): "
                "adapt EDITS in testbed/stage/virtual/kernel.py"
            )
        path.write_text(text.replace(edit.old, edit.new))


def build() -> Kernel:
    """Builds the kernel unless it is in the cache. Takes some five minutes on two cores."""
    if not SOURCE.is_file():
        raise CannotRunError(f"{SOURCE} is missing: apt-get install linux-source-6.12")
    digest = hashlib.sha256(recipe_hash().encode())
    with SOURCE.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    key = digest.hexdigest()[:16]
    folder = cache_folder() / "kernel" / key
    with contextlib.suppress(CannotRunError):
        if (folder / "build.json").is_file() and find().key == key:
            return find()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        tree = _unpack(folder)
        apply_edits(tree)
        version = _compile(tree, folder / "build.log")
        shutil.copy2(tree / "linux", folder / "linux")
        shutil.rmtree(tree)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotRunError(f"the kernel cannot be built in {folder}: {error}") from None
    info = {"version": version, "key": key, "recipe": recipe_hash(), "built": time.time()}
    (folder / "build.json.new").write_text(json.dumps(info))
    (folder / "build.json.new").rename(folder / "build.json")
    return find()


def _unpack(folder: Path) -> Path:
    print(f"unpacking {SOURCE.name} ...", flush=True)
    subprocess.run(["tar", "-xJf", str(SOURCE), "-C", str(folder)], check=True)
    trees = [path for path in folder.iterdir() if path.is_dir()]
    if len(trees) != 1:
        raise CannotRunError(f"{SOURCE} holds {len(trees)} folders, not one: reinstall linux-source-6.12")
    return trees[0]


def _compile(tree: Path, log_path: Path) -> str:
    jobs = len(os.sched_getaffinity(0))
    with log_path.open("w") as log:
        steps: tuple[tuple[str, ...], ...] = (
            (*_MAKE, f"KCONFIG_ALLCONFIG={CONFIG}", "allnoconfig"),
            (*_MAKE, f"-j{jobs}", "linux"),
        )
        for step in steps:
            process = subprocess.Popen(step, cwd=tree, stdout=log, stderr=subprocess.STDOUT)
            try:
                _watch(process, log_path)
            except BaseException:
                process.terminate()
                process.wait()
                raise
            if process.returncode:
                raise CannotRunError(f"the kernel did not compile: see the end of {log_path}")
    wanted = {line for line in CONFIG.read_text().splitlines() if line.startswith("CONFIG_")}
    missing = sorted(wanted - set((tree / ".config").read_text().splitlines()))
    if missing:
        raise CannotRunError(f"the kernel's source does not know {', '.join(missing)}: adapt {CONFIG}")
    text = (tree / "include/generated/utsrelease.h").read_text()
    match = re.search(r'"(.+)"', text)
    return match.group(1) if match else "unknown"


def _watch(process: subprocess.Popen[bytes], log_path: Path) -> None:
    begin = time.monotonic()
    while True:
        try:
            process.wait(timeout=_PROGRESS_S)
            return
        except subprocess.TimeoutExpired:
            compiled = log_path.read_text(errors="replace").count("  CC ")
            share = min(99, 100 * compiled // _OBJECTS_EXPECTED)
            spent = int(time.monotonic() - begin)
            print(f"building the virtual-time kernel: {share} % after {spent} s", flush=True)


def main() -> int:
    """Command line of ``make``."""
    if sys.argv[1:] != ["build"]:
        print("usage: python -m testbed.stage.virtual.kernel build", file=sys.stderr)
        return 2
    try:
        kernel = build()
    except CannotRunError as error:
        print(f"incastfree: {error}", file=sys.stderr)
        return 1
    print(f"virtual-time kernel {kernel.version}: {kernel.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
