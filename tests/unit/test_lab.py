"""The lab: its Vagrantfile is valid, its packages are chosen rightly, and the commands of its documentation exist."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from controller.cli.main import main
from testbed.cli import compare, run, workload
from testbed.fabric.tables import fabric_tables
from testbed.topology import leaf_spine, wire
from tests.conftest import REPOSITORY

VAGRANT = REPOSITORY / "vagrant"
INSTALL = REPOSITORY / "scripts" / "install-packages.sh"
VERBS = {"compare": compare, "run": run, "workload": workload}


def test_vagrantfile(tmp_path: Path) -> None:
    """As `vagrant validate` does it; no provider is needed for that."""
    vagrant = shutil.which("vagrant")
    if vagrant is None:
        pytest.skip("needs vagrant: apt-get install vagrant")
    own = {"VAGRANT_HOME": str(tmp_path / "home"), "VAGRANT_DOTFILE_PATH": str(tmp_path / "state")}
    done = subprocess.run(
        [vagrant, "validate", "--ignore-provider"],
        cwd=VAGRANT,
        env={**os.environ, **own, "VAGRANT_CHECKPOINT_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of commands that play a machine: `installed` and `known` list its packages, `log` what apt-get did."""
    commands = {
        "dpkg-query": 'grep -qx "$4" "$packages/installed" && printf installed',
        "apt-cache": 'grep -qx "$2" "$packages/known"',
        "apt-get": 'echo "$@" >>"$packages/log"; [ "$1" = update ] || ! echo "$@" | grep -q nowhere',
        "id": "echo 0",
    }
    for name, command in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\npackages={tmp_path}\n{command}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("installed", "known", "log"):
        (tmp_path / name).touch()
    return tmp_path


def install(packages: Path, *names: str) -> tuple[int, str]:
    """Exit code, and what apt-get was called to install."""
    path = f"{packages}:{os.environ['PATH']}"
    done = subprocess.run([INSTALL, *names], env={"PATH": path}, capture_output=True, check=False)
    last = (packages / "log").read_text().splitlines()[-1:]
    return done.returncode, last[0].rpartition("--no-install-recommends ")[2] if last else ""


def test_nothing_is_installed_where_all_is_there(packages: Path) -> None:
    (packages / "installed").write_text("make\nnew\nlibbpf0\n")
    assert install(packages, "make", "libbpf1,libbpf0", "new,old") == (0, "")


@pytest.mark.parametrize(
    ("known", "chosen"), [("libbpf1\nmake\n", "make libbpf1"), ("libbpf0\nmake\nlibbpf1\n", "make libbpf1")]
)
def test_the_first_name_that_is_known_is_installed(packages: Path, known: str, chosen: str) -> None:
    (packages / "known").write_text(known)
    assert install(packages, "make", "libbpf1,libbpf0") == (0, chosen)


def test_another_name_is_installed_where_the_first_is_unknown(packages: Path) -> None:
    (packages / "known").write_text("libbpf0\nmake\n")
    (packages / "installed").write_text("make\n")
    assert install(packages, "make", "libbpf1,libbpf0") == (0, "libbpf0")


def test_a_package_that_is_unknown_by_all_names_is_an_error(packages: Path) -> None:
    code, chosen = install(packages, "nowhere,elsewhere")
    assert code != 0
    assert chosen == "nowhere"


def blocks(document: Path) -> list[str]:
    """What a document shows as code: fenced, or indented by four spaces after an empty line."""
    text = document.read_text()
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"(?:\A|\n)\n((?:    .*\n)+)", rest)
    return [*fenced, *(re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in indented)]


def commands(block: str) -> Iterator[list[str]]:
    """Words of every incastfree command in a block of shell, those within `vagrant ssh -c '...'` among them."""
    lines = block.splitlines()
    while lines:
        line = lines.pop(0)
        while lines and line.endswith("\\"):
            line = line[:-1] + lines.pop(0)
        if "incastfree" not in line:
            continue
        words: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        for word in [*lexer, "&&"]:
            if not set(word) <= set("&|;<>"):
                words.append(word)
                continue
            if words[:2] == ["vagrant", "ssh"] and "-c" in words:
                yield from commands(words[words.index("-c") + 1])
            if words[:1] == ["sudo"]:
                words.pop(0)
            if words[:1] == ["incastfree"]:
                yield words[1:]
            words = []


def test_commands_are_found() -> None:
    block = "vagrant up\nvagrant ssh -c 'cd x && incastfree a --b \\\n  c && sudo incastfree d' >f\nincastfree e # f g\nls\n"
    assert list(commands(block)) == [["a", "--b", "c"], ["d"], ["e"]]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """The verbs that run something only note here what they were given."""
    noted: list[argparse.Namespace] = []

    def note(arguments: argparse.Namespace) -> int:
        noted.append(arguments)
        return 0

    for module in VERBS.values():
        monkeypatch.setattr(module, "run", note)
    return noted


def shown(name: str) -> list[list[str]]:
    """The commands of a document that run something."""
    return [words for block in blocks(REPOSITORY / name) for words in commands(block) if words[0] in VERBS]


@pytest.mark.parametrize("name", ["README.md", "docs/lab.md"])
def test_the_options_that_the_documentation_shows_exist(name: str, parsed: list[argparse.Namespace]) -> None:
    """The parser is the command's own, and takes no other."""
    for words in shown(name):
        assert main(words) == 0, words
    assert len(parsed) == len(shown(name)) > 0


def test_the_lab_compares_on_bmv2_in_real_time(parsed: list[argparse.Namespace]) -> None:
    """The first commands of docs/lab.md make the demand that round robin and pacing are compared on."""
    for words in shown("docs/lab.md")[:2]:
        main(words)
    made, compared = parsed
    assert (made.verb, compared.verb) == ("workload", "compare")
    assert (compared.stage, compared.fabric, compared.schedule) == ("host", "bmv2", "rr,rate")
    assert (compared.demand, compared.unit) == ([str(made.out)], "wire-bytes")


@pytest.mark.parametrize("hosts", [8, 6])
def test_the_port_map_of_the_documentation(hosts: int) -> None:
    """docs/lab.md, Ports: hosts first, then spines, and the number in the interface's name."""
    wiring = wire(leaf_spine(hosts, 4, Fraction(800), Fraction(1000), {}, {}))
    spines = [f"spine{number}" for number in range(1, 5)]
    faces = {
        "leaf1": ["h1", "h2", "h3", "h4", *spines],
        "leaf2": [f"h{number}" for number in range(5, hosts + 1)] + spines,
        **{spine: ["leaf1", "leaf2"] for spine in spines},
    }
    for table in fabric_tables(wiring, 0).switches:
        ports = [wiring.ports[port] for port in table.ports]
        assert [port.peer_node for port in ports] == faces[table.name]
        assert [port.name for port in ports] == [f"{table.name}-eth{table.number_of(port.index)}" for port in ports]
