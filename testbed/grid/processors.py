"""One virtual machine a processor, whoever else runs some: processes of a cluster, another command."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

__all__ = ["borrowed_processor"]


@contextlib.contextmanager
def borrowed_processor() -> Iterator[int | None]:
    """A processor that nobody else has borrowed; None, which leaves the choice to the host, where there is none.

    What tells others is a name in the abstract socket namespace (unix(7)): it goes with the process, however that ends.
    """
    with contextlib.ExitStack() as stack:
        for cpu in sorted(os.sched_getaffinity(0)):
            name = stack.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(OSError):
                name.bind(f"\0incastfree-processor-{cpu}")
                yield cpu
                return
        yield None
