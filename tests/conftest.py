"""What all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def own_processor() -> None:
    """Keep a worker of pytest-xdist, and all that it starts, on one processor.

    A virtual stage is bound to a processor, the first that its process may use. Without this all workers' stages would
    share one.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[int(worker.removeprefix("gw")) % len(processors)]})


own_processor()
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's job in the background: the commands that the tests interrupt would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the OLMoE and Zipf matrices, which lies beside the checkout and is not part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the matrices in {folder}, which is not there")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the long tests may be."""
    parser.addoption("--seeds", type=int, default=1, help="seeds of the runs on the OLMoE matrices (30 s each)")


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> int:
    """See --seeds."""
    return int(request.config.getoption("--seeds"))
