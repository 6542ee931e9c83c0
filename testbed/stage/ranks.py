"""Runs a command once a host, in the virtual stage: on real sockets, each host in a namespace of its own.

No NumPy here: see testbed/stage/virtual/guest.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from controller.errors import CannotRunError
from testbed.fabric.programs import FabricPrograms
from testbed.net import FabricNet, host_address
from testbed.stage.console import CONSOLE, say

__all__ = ["COMMAND", "SPANS", "OUTPUT", "RESULT", "run_ranks"]

COMMAND: Final = "command.json"
"""What to run: argv, environment, folder, limit_s (kernel time), sysctls, line_rates_bps."""
RESULT: Final = "ranks.json"
"""What became of it."""
OUTPUT: Final = "ranks"
"""Folder of the ranks' output: rank-R.out and rank-R.err."""
SPANS: Final = "spans"
"""Folder of the times that programs noted: a file a rank."""
_BPF_FOLDER: Final = Path("/run/bpf")
_PEERS: Final = Path("/run/incastfree-peers.toml")
_HOSTS: Final = Path("/run/incastfree-hosts")
_MASTER_PORT: Final = 29500
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_NS: Final = 10**9
_CHUNK: Final = 1 << 16
_LONGEST_LINE: Final = 4096
"""A line that is longer is shown in pieces."""
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_NOT_STARTED: Final = 127


@dataclass
class _Rank:
    number: int
    pid: int
    pidfd: int
    pipes: dict[int, str]
    """File descriptor to "out" or "err"."""
    files: dict[str, int]
    rest: dict[str, bytes] = field(default_factory=dict)
    """The last line, not ended yet."""
    last_line: str = ""
    end_ns: int = 0
    status: int | None = None


def run_ranks(job: dict[str, Any], net: FabricNet, fabric: FabricPrograms, work: Path) -> None:
    """Runs command.json of the work folder. Raises CannotRunError, in one line, where a rank fails or does not end."""
    given = json.loads((work / COMMAND).read_text())
    hosts = len(net.hosts)
    for folder in (OUTPUT, SPANS):
        (work / folder).mkdir()
    _write_rates(fabric, work, hosts)
    _pin_rates(fabric)
    names = [host.name for host in net.hosts]
    _write_names(names)
    Path("/proc/sys/kernel/randomize_va_space").write_text("0")  # addresses decide the order of what programs hash
    for host in net.hosts:
        _set_sysctls(host.pid, given["sysctls"])
    # What a rank prints is to be passed on before it goes on, lest it stop the clock; ranks run as they would elsewhere.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    go_read, go_write = os.pipe()
    ranks = []
    for rank, host in enumerate(net.hosts):
        nic = work / f"nic-{rank}.json"
        nic.write_text(json.dumps(_nic(given, rank, hosts)))
        environment = {**given["environment"], **_environment(job, names, rank, nic, work)}
        ranks.append(_start(given, rank, host, environment, work, (go_read, go_write)))
    os.close(go_read)
    say("ready")
    epoch_ns = (time.monotonic_ns() // _NS + 2) * _NS
    fabric.fail_links((port, epoch_ns + down_ns, epoch_ns + up_ns) for port, down_ns, up_ns in job["failures"])
    time.sleep((epoch_ns - time.monotonic_ns()) / _NS)
    begin_ns = time.monotonic_ns()
    os.close(go_write)  # all of them wait for that
    failure = ""
    try:
        _follow(ranks, given, begin_ns + int(given["limit_s"] * _NS))
    except CannotRunError as error:
        failure = str(error)
    say("measured")
    head = fabric.head.cast("Q")
    (work / RESULT).write_text(
        json.dumps(
            {
                "begin_ns": begin_ns,
                "ranks": [{"end_ns": rank.end_ns, "status": rank.status} for rank in ranks],
                "flows": fabric.flows(),
                "deepest_ns": fabric.deepest_ns(),
                "ports": fabric.port_counters(),
                "late_packets": head[4],
                "failure": failure,
            }
        )
    )
    if failure:
        raise CannotRunError(failure)


def _write_rates(fabric: FabricPrograms, work: Path, hosts: int) -> None:
    """Of the experiment's demand, if it has one."""
    file = work / "rates-0.bin"
    if not file.exists():
        return
    rates = memoryview(file.read_bytes())
    for host, table in enumerate(fabric.rate_tables):
        table.write(rates[host * hosts * 4 : (host + 1) * hosts * 4])


def _pin_rates(fabric: FabricPrograms) -> None:
    """Where a program finds the table of its NIC: no host's own /sys hides this folder."""
    _BPF_FOLDER.mkdir()
    _mount("bpf", str(_BPF_FOLDER), "bpf")
    fabric.object.pin_map("rate_tables", _BPF_FOLDER / "rate_tables")


def _write_names(names: list[str]) -> None:
    """Every host by its name, and the peers in the form that ``incastfree load`` takes."""
    _HOSTS.write_text(
        "127.0.0.1 localhost\n" + "".join(f"{host_address(rank)} {name}\n" for rank, name in enumerate(names))
    )
    _PEERS.write_text("".join(f'{rank} = "{host_address(rank)}"\n' for rank in range(len(names))))


def _nic(given: dict[str, Any], rank: int, hosts: int) -> dict[str, Any]:
    """What a program must know to write its NIC's rates (controller/nic/pinned.py)."""
    return {
        "table": str(_BPF_FOLDER / "rate_tables"),
        "entry": rank,
        "entries": hosts,
        "line_rates_bps": given["line_rates_bps"],
        "mtu_bytes": given["mtu_bytes"],
    }


def _environment(job: dict[str, Any], names: list[str], rank: int, nic: Path, work: Path) -> dict[str, str]:
    """As torchrun sets it for one process a node (torch.distributed.run), and what else a program may want to know."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(names)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(len(names)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(len(names)),
        "MASTER_ADDR": host_address(0),
        "MASTER_PORT": str(_MASTER_PORT),
        "GLOO_SOCKET_IFNAME": f"{names[rank]}-eth0",
        "TMPDIR": "/tmp",  # the caller's own is not there, or cannot be written
        "INCASTFREE_ADDRESSES": ",".join(host_address(host) for host in range(len(names))),
        "INCASTFREE_PEERS": str(_PEERS),
        "INCASTFREE_NIC": str(nic),
        "INCASTFREE_SPANS": str(work / SPANS / str(rank)),
        "INCASTFREE_DILATION": str(float(Fraction(job["dilation"]))),
    }


def _set_sysctls(pid: int, sysctls: dict[str, str]) -> None:
    """Of a host's network namespace, from a process of its own: this one stays where it is."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        shown = "sysctls"
        try:
            _enter(pid, _CLONE_NEWNET, "net")
            for name, value in sysctls.items():
                shown = f"--sysctl {name}={value}"
                Path("/proc/sys", name.replace(".", "/")).write_text(value)
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            reason = error.strerror if isinstance(error, OSError) else str(error)
            os.write(write, f"{shown} was refused by the virtual-time kernel: {reason}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8", errors="replace") as pipe:
        refused = pipe.read()
    os.waitpid(child, 0)
    if refused:
        raise CannotRunError(f"{refused}; give another value, or leave it out")


def _start(
    given: dict[str, Any], rank: int, host: Any, environment: dict[str, str], work: Path, go: tuple[int, int]
) -> _Rank:
    pipes = {name: os.pipe() for name in ("out", "err")}
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            os.close(go[1])
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(pipes["out"][1], 1)
            os.dup2(pipes["err"][1], 2)
            _isolate(host.pid, host.name)
            os.chdir(given["folder"])
            os.read(go[0], 1)  # until all are ready
            os.execvpe(given["argv"][0], given["argv"], environment)
        except OSError as error:
            where = error.filename or given["argv"][0]
            os.write(2, f"{os.fsdecode(where)} cannot be started: {error.strerror}\n".encode())
        finally:
            os._exit(_NOT_STARTED)
    for _, write in pipes.values():
        os.close(write)
    files = {
        name: os.open(work / OUTPUT / f"rank-{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for name in pipes
    }
    return _Rank(rank, pid, os.pidfd_open(pid), {read: name for name, (read, _) in pipes.items()}, files)


def _isolate(pid: int, name: str) -> None:
    """Makes the calling process one of a host: its network, its name, and the names of all others."""
    libc = ctypes.CDLL(None, use_errno=True)
    _enter(pid, _CLONE_NEWNET, "net")
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("sys", "/sys", "sysfs")
    if os.path.exists("/etc/hosts"):
        _mount(str(_HOSTS), "/etc/hosts", "", _MS_BIND)
    libc.sethostname(name.encode(), len(name))


def _enter(pid: int, kind: int, name: str) -> None:
    """os.setns is Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(namespace, kind):
        raise OSError(ctypes.get_errno(), f"setns {name}")
    os.close(namespace)


def _mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _follow(ranks: list[_Rank], given: dict[str, Any], limit_ns: int) -> None:
    """Passes on what the ranks print until all have ended. Raises CannotRunError for one that fails, and at the limit."""
    poll = select.poll()
    reading: dict[int, _Rank] = {}
    ending: dict[int, _Rank] = {}
    for rank in ranks:
        for pipe in rank.pipes:
            reading[pipe] = rank
            poll.register(pipe, select.POLLIN)
        ending[rank.pidfd] = rank
        poll.register(rank.pidfd, select.POLLIN)
    failed: _Rank | None = None
    while ending and not failed:
        left_ms = (limit_ns - time.monotonic_ns()) // 1_000_000
        ready = poll.poll(left_ms) if left_ms > 0 else []
        if not ready:
            break
        for fd, _ in ready:
            if fd in reading:
                _read(poll, reading, fd)
        for fd, _ in ready:
            if fd in ending:
                rank = ending.pop(fd)
                poll.unregister(fd)
                rank.end_ns = time.monotonic_ns()
                rank.status = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
                if rank.status and (failed is None or rank.number < failed.number):
                    failed = rank
    hung = "" if failed or not ending else _why_hung(list(ending.values()), given)
    # All but ourselves, the first process: what ranks have left running would keep their pipes open.
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    for pidfd in ending:
        poll.unregister(pidfd)
    while reading:  # what was written before
        for fd, _ in poll.poll():
            _read(poll, reading, fd)
    for rank in ranks:
        for kind, text in rank.rest.items():
            _show(rank, kind, [text])
    if failed:
        raise CannotRunError(_why_failed(failed, given))
    if hung:
        raise CannotRunError(f"{hung}; the last line was: {min(ending.values(), key=_number).last_line or 'none'}")


def _read(poll: select.poll, reading: dict[int, _Rank], fd: int) -> None:
    """What is in a pipe: to its file, and in whole lines to the console."""
    rank = reading[fd]
    kind = rank.pipes[fd]
    data = os.read(fd, _CHUNK)
    if not data:
        poll.unregister(fd)
        del reading[fd]
        os.close(fd)
        return
    os.write(rank.files[kind], data)
    *lines, rest = (rank.rest.get(kind, b"") + data).split(b"\n")
    while len(rest) > _LONGEST_LINE:
        lines.append(rest[:_LONGEST_LINE])
        rest = rest[_LONGEST_LINE:]
    _show(rank, kind, lines)
    rank.rest[kind] = rest


def _show(rank: _Rank, kind: str, lines: list[bytes]) -> None:
    """In one write: to the console of this kernel one takes 25 us."""
    shown = ""
    for line in lines:
        text = line.rstrip(b"\r").decode(errors="replace")
        if text.strip():
            rank.last_line = text.strip()
            shown += f"@{kind} {rank.number} {text}\n"
    left = memoryview(shown.encode())
    while left:
        left = left[os.write(CONSOLE, left) :]


def _why_failed(rank: _Rank, given: dict[str, Any]) -> str:
    assert rank.status is not None
    if rank.status < 0:
        how = f"was killed by signal {-rank.status} ({signal.Signals(-rank.status).name})"
    else:
        how = f"ended with exit code {rank.status}"
    return f"rank {rank.number} ({_shown(given)}) {how}: {rank.last_line or 'it printed nothing'}"


def _why_hung(ranks: list[_Rank], given: dict[str, Any]) -> str:
    """Names the first that has not ended, and what is running there."""
    first = ranks[0]
    others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    processes = ", ".join(_processes(first.pid)) or f"process {first.pid}"
    return (
        f"rank {first.number}{others} ({_shown(given)}) had not ended after {given['limit_s']:g} s of its clock "
        f"(limit_virtual_s); there is {processes}"
    )


def _processes(session: int) -> Iterable[str]:
    """Of a session: command and state."""
    found = []
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            words = (folder / "cmdline").read_bytes().split(b"\0")
            name = b" ".join(words).decode(errors="replace").strip()[:80]
            found.append(f"{name} (process {folder.name}, state {fields[0]})")
    return found


def _number(rank: _Rank) -> int:
    return rank.number


def _shown(given: dict[str, Any]) -> str:
    text = " ".join(given["argv"])
    return text if len(text) <= 80 else f"{text[:77]}..."
