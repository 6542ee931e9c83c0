"""What several unit tests need."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

Compile = Callable[[str], Path]


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a C program against the headers of ebpf/include and testbed/engine; returns the executable."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc: apt-get install gcc libc6-dev")

    def compile_source(source: str) -> Path:
        folder = tmp_path_factory.mktemp("c")
        (folder / "program.c").write_text(source)
        headers = [f"-I{REPOSITORY / name}" for name in ("ebpf/include", "testbed/engine")]
        command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", *headers, "program.c", "-o", "program"]
        subprocess.run(command, cwd=folder, check=True)
        return folder / "program"

    return compile_source
