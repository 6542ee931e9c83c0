"""Runs a command as the first process of namespaces of its own, and ends with it.

``enter.py CALLER CPU COMMAND...``: CALLER is the caller's process id, CPU the processor to stay on. Run with
``python -I -S``: it imports nothing but the standard library.

How nothing is left, whatever is killed, and by whom: when the caller dies, the kernel kills this process; when this
one dies, it kills the command (PR_SET_PDEATHSIG, each with a check that the parent had not died before). The command
is process 1 of a PID namespace: when it dies, the kernel kills all others in there. With the last of them go the
network namespace, its interfaces and the programs on them, and the mounts. None of that has a name in a file system,
so nothing holds it. A signal to end (SIGTERM) kills the command and waits until all of its processes are gone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import sys
from typing import Final

__all__ = ["NEW_IPC", "NEW_NET", "unshare"]

NEW_NET: Final = 0x40000000
NEW_IPC: Final = 0x08000000
_NEW_MOUNT: Final = 0x00020000
_NEW_UTS: Final = 0x04000000
_NEW_PID: Final = 0x20000000
_PR_SET_PDEATHSIG: Final = 1


def unshare(flags: int) -> None:
    """New namespaces for the calling thread (os.unshare is Python 3.12); of processes, for its children."""
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> int:
    """The command's exit code; 128 and the signal if one killed it."""
    caller, cpu, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None)
    child = 0

    def end(*_: object) -> None:
        if not child:  # or forked in this very moment: then our end is the child's
            os._exit(1)
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides what an interrupt means
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != caller:
        return 1
    os.sched_setaffinity(0, {cpu})
    try:
        unshare(_NEW_PID | _NEW_MOUNT | _NEW_UTS | NEW_NET)
    except OSError as error:
        print(f"@error namespaces cannot be made here: {error.strerror}: use stage virtual", flush=True)
        return 1
    try:
        unshare(NEW_IPC)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel that has none: nothing of ours is shared that way
            raise
    alive, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Our parent has no process id in here, but as long as it lives, its end of the pipe is open.
        if select.select([alive], [], [], 0)[0]:
            os._exit(1)
        os.close(alive)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.execv(command[0], command)
        except OSError as error:
            print(f"@error {command[0]} cannot be started: {error.strerror}", flush=True)
            os._exit(127)
    _, status = os.waitpid(child, 0)  # returns when all processes of the namespace are gone
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
