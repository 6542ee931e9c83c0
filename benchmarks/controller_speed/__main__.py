"""Speed of the controller: M, one rank's rates, their write, alone and together. ``make bench-controller``.

Beside each other, call by call, on one processor: a read pass over the matrix (``matrix.max()``), the copy of as many
rates by memcpy, and what the controller does. Medians and 99th percentiles in us, and ratios of medians. The table is
that of the ebpf backend, in the memory of a BPF map where one can be made (as root), else in shared memory.

Then the soak: a reader in C that reads whole tables without pause against a writer in Python without pause, each on a
processor of its own. None may be torn, and generations may not go back.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from controller import CannotRunError, native, port_loads, rank_rates
from controller.nic.ebpf import OBJECT, EbpfNic
from controller.nic.libbpf import BpfObject
from controller.nic.rate_table import RATE_SLOTS, TABLE_BYTES, RateTable

REPOSITORY = Path(__file__).resolve().parents[2]
HOSTS = (64, 256, 1000)
PATTERNS = 64
Cases = dict[str, Callable[[], Any]]


def open_table() -> tuple[int, RateTable, str]:
    """File descriptor of its memory, the table, and where it is."""
    try:
        program = BpfObject(OBJECT)
        program.load()
        bpf_map = program.map("rate_tables")
        return os.dup(bpf_map.fd), RateTable(bpf_map.map_memory()), "a BPF map of the pacer"
    except CannotRunError as error:
        fd = os.memfd_create("rates")
        os.ftruncate(fd, -(-TABLE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
        return fd, RateTable(memoryview(mmap.mmap(fd, TABLE_BYTES))), f"shared memory ({error})"


def sample(cases: Cases, samples: int) -> dict[str, list[float]]:
    """Microseconds of each call; the cases take turns, so that what disturbs one disturbs all."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    now = time.perf_counter_ns
    for call in cases.values():
        call()
    gc.disable()
    for _ in range(samples):
        for name, call in cases.items():
            start = now()
            call()
            taken[name].append((now() - start) / 1e3)
    gc.enable()
    return taken


def with_numpy(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same without the C part."""

    def run() -> None:
        part, native.part = native.part, None
        try:
            call()
        finally:
            native.part = part

    return run


def groups_of(hosts: int, table: RateTable) -> list[Cases]:
    """The first case of each group is what the others are held against."""
    rng = np.random.default_rng(hosts)
    matrix = rng.integers(0, 2**32, (hosts, hosts), dtype=np.uint32)
    np.fill_diagonal(matrix, 0)
    wide = matrix.astype(np.int64)
    loads = port_loads(matrix)
    row, largest_row = wide[3].copy(), int(loads.sent.max())
    received = loads.received
    rates = rank_rates(row, received, largest_row)
    source, target = memoryview(rates.tobytes()), memoryview(bytearray(4 * hosts))

    def copy() -> None:
        target[:] = source

    nic = cast(EbpfNic, SimpleNamespace(_table=table))  # of a table that paces no interface

    def write() -> None:
        EbpfNic.write_rates(nic, rates)

    def from_sums() -> None:
        EbpfNic.write_rates(nic, rank_rates(row, received, largest_row))

    def together() -> None:
        found = port_loads(matrix)
        EbpfNic.write_rates(nic, rank_rates(matrix[3], found.received, found.sent))

    return [
        {
            "read pass: matrix.max(), uint32": matrix.max,
            "M, uint32": lambda: port_loads(matrix).largest,
            "M, one row's rates, write": together,
            "M, NumPy alone": with_numpy(lambda: port_loads(matrix).largest),
        },
        {
            "read pass: matrix.max(), int64": wide.max,
            "M, int64": lambda: port_loads(wide).largest,
        },
        {
            "memcpy of the rates": copy,
            "write": write,
            "row and sums to rates": lambda: rank_rates(row, received, largest_row),
            "row and sums to the table": from_sums,
            "write, NumPy alone": with_numpy(write),
            "row and sums to the table, NumPy alone": with_numpy(from_sums),
        },
        {
            "a read pass, int64, that cools the caches": wide.max,
            "then: row and sums to the table": from_sums,
        },
        {
            "a read pass, int64, that cools the caches": wide.max,
            "then: write": write,
        },
    ]


def measure(table: RateTable, samples: int) -> None:
    for hosts in HOSTS:
        print(f"\nN = {hosts}")
        print(f"  {'':40} {'median [us]':>12} {'p99 [us]':>10}   ratio of medians")
        for group in groups_of(hosts, table):
            beside = next(iter(group))
            taken = sample(group, samples)
            for name, times in taken.items():
                median, p99 = statistics.median(times), sorted(times)[int(0.99 * len(times))]
                ratio = f"{median / statistics.median(taken[beside]):.2f} x {beside}" if name != beside else ""
                print(f"  {name:40} {median:12.2f} {p99:10.2f}   {ratio}".rstrip())


def compile_reader(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("the soak needs a C compiler: apt-get install gcc libc6-dev")
    program = folder / "rate_table_reader"
    source = Path(__file__).with_name("rate_table_reader.c")
    subprocess.run([compiler, "-O3", f"-I{REPOSITORY / 'ebpf/include'}", source, "-o", program], check=True)
    return program


def patterns() -> list[NDArray[np.uint32]]:
    """Rates of write number g: those of g mod PATTERNS."""
    slots = np.arange(RATE_SLOTS, dtype=np.uint64) * 0x85EBCA77
    return [((np.uint64(g) * np.uint64(0x9E3779B1) + slots) % 2**32).astype(np.uint32) for g in range(PATTERNS)]


def soak(fd: int, table: RateTable, reads: int) -> bool:
    """Whether no read was torn."""
    rates = patterns()
    processors = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        program = compile_reader(Path(folder))
        while table.generation % PATTERNS:  # the timings above left any number of writes
            table.write(rates[(table.generation + 1) % PATTERNS])
        first = table.generation
        os.sched_setaffinity(0, {processors[-1]})
        reader = subprocess.Popen(
            [program, str(fd), str(reads)],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[fd],
        )
        os.sched_setaffinity(0, {processors[0]})
        start = time.perf_counter()
        try:
            while reader.poll() is None:
                for number in range(1, 1001):
                    table.write(rates[(first + number) % PATTERNS])
                first += 1000
        except BaseException:
            reader.kill()
            raise
        seconds = time.perf_counter() - start
        output = reader.communicate()[0].split()
        os.sched_setaffinity(0, set(processors))
    done, torn, back, overtaken, seen = (int(word) for word in output[1:])
    print(
        f"\nsoak: {done} whole-table reads against {table.generation} writes in {seconds:.1f} s: {torn} torn, "
        f"{back} of an older generation, {overtaken} attempts overtaken, {seen} generations seen"
    )
    return torn == 0 and back == 0 and done == reads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000, help="calls of each case (default: 2000)")
    parser.add_argument("--reads", type=int, default=10_000_000, help="of the soak; 0: none (default: 10 million)")
    arguments = parser.parse_args()
    fd, table, where = open_table()
    with open("/proc/cpuinfo", encoding="ascii") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    print(f"{(models or [platform.machine()])[0]}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"C part: {native.part.__file__ if native.part is not None else native.MISSING}; table: {where}")
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    measure(table, arguments.samples)
    os.sched_setaffinity(0, processors)
    if arguments.reads and len(processors) < 2:
        print("\nsoak: needs two processors: a reader and a writer that take turns do not meet")
        return 1
    return 0 if not arguments.reads or soak(fd, table, arguments.reads) else 1


if __name__ == "__main__":
    sys.exit(main())
