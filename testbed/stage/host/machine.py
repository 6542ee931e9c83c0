"""One run in real time, in the kernel at hand: starts it, follows it, and leaves nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError
from testbed.stage.host import enter
from testbed.stage.host.checks import require
from testbed.stage.machine import GUEST_ENVIRONMENT, Machine, check_memory

__all__ = ["GUEST_MODULE", "HostMachine"]

GUEST_MODULE: Final = "testbed.stage.host.guest"
_KILLED: Final = 9


class HostMachine(Machine):
    """Runs one task (testbed.stage.tasks) on a work folder, in namespaces of its own.

    All of it stays on one processor. The fabric's eBPF programs share ports and counters without locks: that is sound
    where they follow each other, on one processor, in softirqs that do not interrupt each other. Packets stay there:
    sch_fq's timer fires on the processor that armed it (HRTIMER_MODE_PINNED), its softirq runs where it was raised, and
    the engine, which sends the first packet, is bound to that processor. So is all that the task starts. The kernel
    fabric gains nothing from a second processor; runs of one experiment follow each other, on the same one.
    """

    def __init__(self, work: Path, *, memory_mib: int, cpu: int | None) -> None:
        """``cpu``: the processor to stay on; None takes the last that we may use: devices prefer the first.

        ``memory_mib``: what the run may need. Raises CannotRunError where this kernel, or this user, cannot do it.
        """
        super().__init__(work)
        require()
        check_memory(memory_mib, 1)
        self._cpu = max(os.sched_getaffinity(0)) if cpu is None else cpu

    def _start(self, task: str, *, interactive: bool) -> subprocess.Popen[bytes]:
        assert not interactive
        code = Path(__file__).resolve().parents[3]
        python = [sys.executable, "-m", GUEST_MODULE, task, str(self._work)]
        command = [sys.executable, "-I", "-S", enter.__file__, str(os.getpid()), str(self._cpu), *python]
        environment = {
            **GUEST_ENVIRONMENT,
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._work),
            "TMPDIR": str(self._work),
            "PYTHONPATH": str(code),
        }
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotRunError(f"{sys.executable} cannot be started: {error.strerror}") from None
        return self._process

    def _crash(self, code: int) -> str:
        if code in (-_KILLED, 128 + _KILLED):
            return "the run was killed from outside (signal 9), maybe since memory ran out: see dmesg"
        return f"the run ended early (status {code}): {self._last_words()}"
