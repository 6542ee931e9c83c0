"""What the documentation shows works as it stands there."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import controller
from controller.cli.load_doca import read_bindings
from controller.demand import Demand
from controller.nic.doca_message import Binding
from controller.schedule import SCHEDULES, make_plan
from controller.schedule.plan import Stages
from testbed.engine.cca import Network, load
from testbed.engine.cca import Path as FlowPath

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_congestion_control_of_the_documentation(tmp_path: Path) -> None:
    """docs/congestion-control.md: it loads, grows by a packet a window, halves at a mark once a round trip."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "congestion-control.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    assert len(blocks[0].splitlines()) < 50
    file = tmp_path / "aimd.py"
    file.write_text(blocks[0])
    aimd = load(str(file))
    assert aimd is not None
    control = aimd(Network(4096, 64, 8166.4, trimming=True), FlowPath(0, 1, 800e9, 8166.4))
    assert control.start() == 816_640
    assert control.on_ack(10_000, 816_640, 9000.0, False, 0) == 816_640 + 4096
    halved = (816_640 + 4096) / 2
    assert control.on_ack(11_000, 4096, 9000.0, True, 0) == halved
    assert control.on_ack(11_000 + 8166, 4096, 9000.0, True, 0) == halved
    assert control.on_ack(11_000 + 8167, 4096, 9000.0, True, 0) == halved / 2
    assert control.on_nack(30_000, 4096, 0.0, 0) == halved / 2 - 4096
    assert control.on_timeout(30_000, 10**6, 0) == 4096


def test_the_schedule_of_the_documentation(tmp_path: Path) -> None:
    """docs/schedules.md: it loads from its file, is checked like the others, and sends the largest first."""
    text = (DOCS / "schedules.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    file = tmp_path / "largest.py"
    file.write_text(blocks[0])
    demand = Demand(np.array([[0, 900, 800], [700, 0, 600], [500, 400, 0]]))
    plan = make_plan(f"{file}:clock", demand, [Fraction(10**9)] * 3)
    assert plan.mode is Stages.CLOCK
    assert plan.stages.tolist() == [
        *((0, 0, 1, 900), (0, 1, 0, 700)),
        *((1, 0, 2, 800), (1, 2, 0, 500)),
        *((2, 1, 2, 600), (2, 2, 1, 400)),
    ]
    for name in SCHEDULES:
        assert f"`{name}`" in text or f"### {name}\n" in text


def test_the_bindings_of_the_documentation(tmp_path: Path) -> None:
    """docs/doca.md."""
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "doca.md").read_text(), re.DOTALL)
    file = tmp_path / "bindings.toml"
    file.write_text(block)
    assert read_bindings(file, 3) == [
        Binding(0x1A4, 0),
        Binding(0x1A5, 1),
        Binding(0x1A6, 1),
        Binding(0x1A4, 2, function=1),
    ]


def test_the_rates_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/controller.md: its first example. The second one, with a NIC, is in tests/emulation/test_controller.py."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "controller.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    exec(compile(blocks[0], "controller.md", "exec"), {})
    assert [round(float(share), 6) for share in capsys.readouterr().out.strip("[]\n").split()] == [0.2, 0, 0.5]


def test_the_interface_of_the_documentation() -> None:
    """Every name that the package has is in the table, and no other."""
    table = (DOCS / "controller.md").read_text().split("## The interface")[1].split("##")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for cell in first for name in re.findall(r"`(\w+)", cell)}
    mentioned = named | set(re.findall(r"a `(\w+)`", table))
    assert mentioned == set(controller.__all__)
