"""The compiled P4 program is the one of the sources that lie beside it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "p4src"
BUILD = SOURCES / "build"


def test_the_sources_have_not_changed_since_they_were_compiled() -> None:
    digest = hashlib.sha256()
    for file in sorted(SOURCES.glob("*.p4")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    provenance = json.loads((BUILD / "provenance.json").read_text())
    assert provenance["sources_sha256"] == digest.hexdigest(), "p4src has changed: run make p4, where p4c is"
    assert provenance["version"]


def test_program_and_control_plane_name_the_same_tables() -> None:
    program = json.loads((BUILD / "fabric.json").read_text())
    info = (BUILD / "fabric.p4info.txt").read_text()
    tables = {table["name"] for pipeline in program["pipelines"] for table in pipeline["tables"]}
    for name in ("FabricIngress.forward.identity", "FabricIngress.forward.route", "FabricIngress.forward.members"):
        assert name in tables
        assert f'name: "{name}"' in info


def test_the_compiler_gives_the_same_again(tmp_path: Path) -> None:
    """Where it is: ``make p4`` on a copy."""
    compiler = os.environ.get("INCASTFREE_P4C") or shutil.which("p4c-bm2-ss")
    if not compiler:
        pytest.skip("p4c-bm2-ss is missing: put it on the path, or name it in INCASTFREE_P4C")
    shutil.copytree(SOURCES, tmp_path / "p4src")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "build-p4.py", tmp_path / "scripts")
    environment = {**os.environ, "INCASTFREE_P4C": compiler}
    subprocess.run([sys.executable, tmp_path / "scripts" / "build-p4.py"], check=True, env=environment)
    for name in ("fabric.json", "fabric.p4info.txt", "provenance.json"):
        assert (tmp_path / "p4src" / "build" / name).read_bytes() == (BUILD / name).read_bytes(), name
