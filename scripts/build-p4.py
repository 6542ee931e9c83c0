"""Compiles p4src/fabric.p4 for BMv2 into p4src/build: ``make p4``, where p4c is.

The compiled program is kept in the repository, since neither users nor CI have the compiler; provenance.json says of which
sources and by which compiler it was made, and a test fails when the sources have changed since.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "p4src"
BUILD = SOURCES / "build"


def sources_sha256() -> str:
    """Of all P4 files, with their names."""
    digest = hashlib.sha256()
    for file in sorted(SOURCES.glob("*.p4")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def without_source_info(value: Any) -> Any:
    """The compiled program without lines and columns, which are three quarters of it."""
    if isinstance(value, dict):
        return {name: without_source_info(item) for name, item in value.items() if name != "source_info"}
    return [without_source_info(item) for item in value] if isinstance(value, list) else value


def main() -> int:
    """Compiles, and says of what and by what. 1 where there is no compiler."""
    compiler = os.environ.get("INCASTFREE_P4C") or shutil.which("p4c-bm2-ss")
    if not compiler:
        print(
            "p4c-bm2-ss is not on the path: build p4lang/p4c, or install the package of the p4lang project, and name it in "
            "INCASTFREE_P4C",
            file=sys.stderr,
        )
        return 1
    said = subprocess.run(
        [compiler, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    version = said.stdout.split()
    BUILD.mkdir(exist_ok=True)
    program, info = BUILD / "fabric.json", BUILD / "fabric.p4info.txt"
    subprocess.run(
        [compiler, "--std", "p4-16", "-o", program, "--p4runtime-files", info, SOURCES / "fabric.p4"],
        check=True,
        cwd=SOURCES,
    )
    compiled = without_source_info(json.loads(program.read_text()))
    compiled.pop("program", None)  # the path of the source
    program.write_text(json.dumps(compiled, separators=(",", ":")) + "\n")
    provenance = {
        "sources_sha256": sources_sha256(),
        "compiler": "p4c-bm2-ss",
        "version": version[version.index("Version") + 1],
    }
    (BUILD / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
