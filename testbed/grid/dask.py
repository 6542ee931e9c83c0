"""Runs cells on a Dask cluster whose workers have incastfree installed as it is here."""

from __future__ import annotations

import platform
import threading
import uuid
from collections.abc import Generator, Sequence
from typing import Any, Final

from controller import __version__
from controller.errors import CannotRunError, InputError
from testbed.grid.cells import Cell, Files, Halt, Outcome, run_cell, versions
from testbed.stage.virtual import kernel

__all__ = ["run_on"]

_CONNECT_S: Final = 10
_LEAVE_S: Final = 1.5
"""What an interrupt may take to tell the workers."""
_QUEUED: Final = 2
"""Cells a thread of the workers that are sent ahead: their matrices wait in the scheduler's memory."""

_halts: dict[str, Halt] = {}
"""On a worker: what ends the cells of a grid, by the grid."""


def run_on(address: str, cells: Sequence[Cell]) -> Generator[Outcome, None, None]:
    """On the cluster whose scheduler is at ``address``, in the order given; each outcome as soon as it is known.

    Closing it ends what still runs there. Raises CannotRunError where the cluster cannot be reached or runs other code.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise CannotRunError(
            "--dask needs the Python package distributed: in the clone, .venv/bin/pip install -e '.[dask]'"
        ) from None
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CannotRunError(
            f"--dask {address}: {reason}; give a scheduler's address, such as tcp://10.0.0.1:8786"
        ) from None
    grid = uuid.uuid4().hex
    waiting = iter(cells)
    tasks: dict[Any, Cell] = {}

    def submit_some(pending: Any) -> None:
        room = _QUEUED * max(1, sum(client.nthreads().values())) - len(tasks)
        for _, cell in zip(range(room), waiting):  # noqa: B905 (as many as there is room for; range first, or a cell is lost)
            task = client.submit(_work, cell, grid, key=f"incastfree-{grid}-{cell.address}", pure=False)
            tasks[task] = cell
            pending.add(task)

    try:
        _check_workers(client, address)
        pending = as_completed(loop=client.loop)
        submit_some(pending)
        for task in pending:
            cell = tasks.pop(task)
            failure = task.exception()
            if failure is None:
                yield Outcome(cell, task.result())
            else:
                known = isinstance(failure, (CannotRunError, InputError))
                yield Outcome(cell, None, str(failure) if known else f"{type(failure).__name__}: {failure}")
            task.release()
            submit_some(pending)
    finally:
        _leave(client, grid, list(tasks))


def _check_workers(client: Any, address: str) -> None:
    try:
        found: dict[str, dict[str, str]] = client.run(_installation)
    except (ImportError, CannotRunError) as error:
        raise CannotRunError(
            f"--dask {address}: a worker cannot run cells: {error}; install incastfree there"
        ) from None
    if not found:
        raise CannotRunError(f"--dask {address}: the scheduler has no workers: start dask worker {address}")
    for worker, theirs in sorted(found.items()):
        for name, value in _installation().items():
            if theirs.get(name) != value:
                raise CannotRunError(
                    f"--dask {address}: worker {worker} has another {name} than here: copy this checkout and the kernel there "
                    "as they are built, and start the worker again"
                )


def _installation() -> dict[str, str]:
    """What must be the same everywhere."""
    built = kernel.find()
    return {
        "version": __version__,
        "python_version": platform.python_version(),
        "kernel_version": built.version,
        "kernel_key": built.key,
        **versions(),
    }


def _leave(client: Any, grid: str, tasks: list[Any]) -> None:
    """Ends what runs, and the connection; not longer than an interrupt may take, where the cluster does not answer."""

    def end() -> None:
        if tasks:
            client.cancel(tasks)
        client.run(_end, grid, on_error="ignore")
        client.close(timeout=_LEAVE_S)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    thread.join(_LEAVE_S)


def _work(cell: Cell, grid: str) -> Files:
    """On a worker."""
    return run_cell(cell, _halts.setdefault(grid, Halt()), lambda _delivered, _expected: None, 1)


def _end(grid: str) -> None:
    """On a worker: the grid has ended, or was interrupted."""
    # Kept: a cell that was on its way when the grid was interrupted must find it.
    _halts.setdefault(grid, Halt()).halt()
