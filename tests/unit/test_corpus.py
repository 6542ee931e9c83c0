"""The files that the fuzzer starts from and those that it once found: each is read, or refused in one line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz import CORPUS, READINGS, attempt, changed

FILES = sorted(path for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_is_read_or_refused(path: Path) -> None:
    ends = [attempt(path, kind, reading) for reading in READINGS for kind in (path.parent.name, "auto")]
    if not path.name.startswith("found-"):
        assert any(end.startswith("read") for end in ends), ends


@pytest.mark.parametrize("kind", sorted({path.parent.name for path in FILES}))
def test_some_changes(tmp_path: Path, kind: str) -> None:
    """The same few every time: long runs are for make fuzz."""
    draw = random.Random(kind)
    seeds = [path.read_bytes() for path in FILES if path.parent.name == kind]
    target = tmp_path / "rank0.bin"
    ends = set()
    for _ in range(60):
        target.write_bytes(changed(draw, draw.choice(seeds), seeds))
        ends.add(attempt(target, kind, draw.choice(READINGS)))
    assert len(ends) > 1


def test_the_fuzzer_sees_what_is_not_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.csv"
    path.write_text("0,1\n1,0\n")
    monkeypatch.setattr("controller.formats.csv_matrix.parse", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        attempt(path, "csv", READINGS[0])
