"""What pip builds beside pyproject.toml: the controller's C part and the pacer's BPF object, where compilers are.

Neither is needed to install. Without the first NumPy computes the same, and without the second no interface can be
paced; incastfree doctor says what is there.
"""

import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
OBJECT = Path("controller/nic/objects/pacer.bpf.o")


class BuildWithPacer(build_py):
    """Adds the BPF object, if clang is there to make it."""

    def run(self) -> None:
        """Warns where there is no clang, or it fails."""
        super().run()
        if self.editable_mode:  # make builds it in its place
            return
        target = Path(self.build_lib) / OBJECT
        clang = shutil.which("clang")
        if clang is None:
            self.warn("clang is missing: no interface can be paced by what is installed (incastfree load)")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        headers = f"/usr/include/{sysconfig.get_config_var('MULTIARCH') or 'linux'}"
        # As BPF_FLAGS in the Makefile.
        command = [clang, "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-I", "ebpf/include", "-I", headers]
        source = "ebpf/nic/pacer.bpf.c"
        made = subprocess.run([*command, "-c", source, "-o", str(target.resolve())], cwd=HERE, check=False)
        if made.returncode:
            self.warn("the pacer cannot be compiled: no interface can be paced by what is installed (incastfree load)")


setup(
    cmdclass={"build_py": BuildWithPacer},
    ext_modules=[
        Extension(
            "controller.native._native",
            sources=["controller/native/module.c", "controller/native/loads.c"],
            depends=[
                "controller/native/loads.h",
                "controller/native/steps.h",
                "ebpf/include/rate_table.h",
                "ebpf/include/rate_table_io.h",
            ],
            include_dirs=["ebpf/include"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ],
)
