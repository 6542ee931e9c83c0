"""Mininet's command line."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.emulation.conftest import write_matrix


def shell(file: Path, words: str) -> subprocess.CompletedProcess[str]:
    """What the command line makes of these words."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("incastfree")), "shell", str(file)],
        input=words,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(("shape", "links"), [("hosts_per_leaf = 4", 4), ('topology = "fat-tree"', 6)])
def test_ping(tmp_path: Path, shape: str, links: int) -> None:
    """h1 reaches h2 at its switch and h7 across the spines, or cores, in the time that links and dilation give."""
    write_matrix(tmp_path / "demand.csv", np.ones((8, 8), dtype=int))
    (tmp_path / "net.toml").write_text(f'{shape}\n[[demand]]\nfile = "demand.csv"\n')
    done = shell(tmp_path / "net.toml", "h1 ping -c 2 h2\nh1 ping -c 2 h7\nexit\n")
    assert done.returncode == 0, done.stdout + done.stderr
    received = re.findall(r"(\d) received, 0% packet loss", done.stdout)
    assert received == ["2", "2"], done.stdout
    times_ms = [float(t) for t in re.findall(r"time=([\d.]+) ms", done.stdout)]
    # Links of 1 us, dilation 100: 0.1 ms a link; 98 bytes take 98 ns on each; there and back.
    near, far = times_ms[1], times_ms[3]
    # Nothing else takes time. ping counts whole microseconds, and from a millisecond on says three digits.
    assert near == math.floor(4 * (100 + 0.098)) / 1000
    assert far == float(f"{math.floor(2 * links * (100 + 0.098)) / 1000:.3g}")


def test_what_the_shell_does_not_run(tmp_path: Path) -> None:
    """Loads and failures of the file are the engine's: said, not passed over."""
    (tmp_path / "net.toml").write_text(
        'hosts = 8\n[[background]]\nsource = "h2"\ndestination = "h5"\nbytes = 1000000\nrate_gbps = 240\n'
        '[[link_failure]]\nlink = "leaf1-spine2"\ndown_ns = 100\nup_ns = 200\n'
    )
    done = shell(tmp_path / "net.toml", "exit\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note: background and link_failure of" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
