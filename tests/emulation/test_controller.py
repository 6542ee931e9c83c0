"""The NIC of docs/controller.md, on an interface of a virtual machine."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.conftest import REPOSITORY

PREPARE = """
import subprocess
from testbed.stage.console import say

subprocess.run("ip netns add peer; ip link add eth0 type veth peer name eth0 netns peer; ip link set eth0 up", shell=True, check=True)
before = subprocess.run("tc qdisc show dev eth0", shell=True, capture_output=True, text=True).stdout
"""
SAY = """
from controller import attach_nic
from controller.nic.ebpf import unload

say("line", str(generation))
steps = np.frombuffer(in_force, dtype="<u4")
say("line", " ".join(str(step) for step in steps[:5]))
say("line", str(int(np.count_nonzero(steps))))
nic.close()
with attach_nic("ebpf", "eth0") as again:
    say("line", str(again.read_rates() == (generation, in_force)))
    again.write_rates(steps[:4])
    say("line", str(again.read_rates()[0]))
unload("eth0")
say("line", str(before == subprocess.run("tc qdisc show dev eth0", shell=True, capture_output=True, text=True).stdout))
"""


def test_the_nic_of_the_documentation(guest: Callable[[str], list[str]]) -> None:
    """Opened, written twice, read back, closed twice, attached again; then the interface is as it was."""
    example = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/controller.md").read_text(), re.DOTALL)[1]
    lines = guest(PREPARE + example + SAY)
    # M is the last column's sum, twice 4000.
    rates = [-(-(2**32 - 5) * amount // 8000) for amount in (0, 1000, 2000, 4000)]
    assert lines[0] == "2"
    assert lines[1].split() == [*map(str, rates), "0"]
    assert lines[2:] == ["3", "True", "3", "True"]
