"""Where BMv2 is on this machine. It is in no package registry: a lab machine has the p4lang project's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.errors import CannotRunError

__all__ = ["NEEDED", "Installation", "find"]

_VARIABLE: Final = "INCASTFREE_BMV2"
NEEDED: Final = (
    f"needs BMv2: put simple_switch_grpc on the PATH, or its place into {_VARIABLE} (packages of the p4lang project, or "
    "built from github.com/p4lang/behavioral-model)"
)


@dataclass(frozen=True)
class Installation:
    """One simple_switch_grpc, with the libraries and Python modules that were installed beside it."""

    program: Path

    @property
    def prefix(self) -> Path:
        """The folder that it was installed under."""
        return self.program.parent.parent

    @property
    def _libraries(self) -> Path:
        return self.prefix / "lib"

    @property
    def python_paths(self) -> list[str]:
        """Folders with bm_runtime, besides those that Python looks into anyway."""
        return [str(path) for path in sorted(self._libraries.glob("python3*/*-packages"))]

    def environment(self) -> dict[str, str]:
        """Of its processes: a switch that was built outside the system's folders brings its libraries along."""
        environment = dict(os.environ)
        old = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{self._libraries}:{old}" if old else str(self._libraries)
        return environment

    def version(self) -> str:
        """As the program says itself, such as "1.15.5". Raises CannotRunError where it does not start."""
        try:
            said = subprocess.run(
                [self.program, "--version"],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
                env=self.environment(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotRunError(f"{self.program} does not start ({error}): install BMv2 again") from None
        return said.stdout.split("\n")[0].strip()


def find() -> Installation | None:
    """The one that INCASTFREE_BMV2 names, or that of the PATH. Raises CannotRunError where the variable names none."""
    named = os.environ.get(_VARIABLE)
    program = shutil.which(named or "simple_switch_grpc")
    if named and not program:
        raise CannotRunError(f"{_VARIABLE} is {named}, which is no program: set it to the path of simple_switch_grpc")
    # Where it really is: the virtual machine sees that folder, and the libraries lie beside it.
    return Installation(Path(program).resolve()) if program else None
