"""Benchmarks start: they are scripts, and what lies beside them may hide what they import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(
    path for path in (*FOLDER.glob("*.py"), *FOLDER.glob("*/__main__.py")) if "ArgumentParser" in path.read_text()
)


def test_there_are_some() -> None:
    assert len(SCRIPTS) > 5
    assert not {path.name for path in FOLDER.iterdir() if path.is_dir()} & {"controller", "testbed", "tests"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_benchmark_says_what_it_takes(path: Path, tmp_path: Path) -> None:
    script = path.parent if path.name == "__main__.py" else path
    ended = subprocess.run(
        [sys.executable, str(script), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage:")
