"""Finding congestion controls: built in, and in a user's file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.errors import InputError
from testbed.engine import cca
from testbed.engine.cca import Control, Network
from testbed.engine.cca.nscc import Nscc
from tests.conftest import REPOSITORY

NETWORK = Network(mtu_bytes=4096, header_bytes=64, rtt_ns=8166.4, trimming=True)
PAIR = cca.Path(source=0, destination=1, line_rate_bps=800e9, rtt_ns=8166.4)

BUILT_IN = ", ".join(cca.BUILT_IN)

FIXED = '''
from testbed.engine.cca import Control, Network, Path


class Fixed(Control):
    """Half of a BDP, whatever happens."""

    def __init__(self, network: Network, path: Path) -> None:
        super().__init__(network, path)
        self.window = path.line_rate_bps / 8e9 * path.rtt_ns / 2

    def start(self) -> float:
        return self.window

    def on_ack(self, now_ns, newly_bytes, rtt_ns, marked, in_flight_bytes):
        return self.window

    on_nack = on_timeout = lambda self, *_: self.window
'''

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a user's file."""

    def write_source(source: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(source)
        return path

    return write_source


def refused(name: str | Path) -> str:
    """The one line with which load refuses."""
    with pytest.raises(InputError) as caught:
        cca.load(str(name))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_built_in_ones() -> None:
    assert {"none", "nscc", "dcqcn", "dcqcn-paper", "fallback"} <= set(cca.BUILT_IN)
    assert cca.load("none") is None
    assert cca.load("nscc") is Nscc
    for name in cca.BUILT_IN:
        assert cca.check(name, Path("/nowhere")) == name
    made = [cca.load(name) for name in cca.BUILT_IN if name != "none"]
    assert len(set(made)) == len(made)
    for control in made:
        assert control is not None
        assert control.kind in cca.KINDS
        assert control(NETWORK, PAIR).start() > 0


def test_the_schedule_s_own_rate_is_the_ceiling() -> None:
    assert PAIR.ceiling_bps == 800e9
    assert cca.Path(0, 1, 800e9, 8166.4, 50e9).ceiling_bps == 50e9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nsc", f"cc 'nsc' is not known: did you mean 'nscc'? (built in: {BUILT_IN}; or a Python file)"),
        ("NSCC", f"cc 'NSCC' is not known: did you mean 'nscc'? (built in: {BUILT_IN}; or a Python file)"),
        ("off", f"cc 'off' is not known (built in: {BUILT_IN}; or a Python file)"),
        ("", f"cc '' is not known (built in: {BUILT_IN}; or a Python file)"),
    ],
)
def test_an_unknown_name(name: str, message: str, tmp_path: Path) -> None:
    assert refused(name) == message
    with pytest.raises(InputError) as caught:
        cca.check(name, tmp_path)
    assert str(caught.value) == message


def test_a_users_file(write: Write) -> None:
    made = cca.load(str(write(FIXED)))
    assert made is not None
    control = made(NETWORK, PAIR)
    assert (made.__name__, made.kind, control.network, control.path) == ("Fixed", "window", NETWORK, PAIR)
    # 100 B/ns x 8,166.4 ns / 2
    windows = [
        control.start(),
        control.on_ack(1.0, 4096, 8200.0, False, 0),
        control.on_nack(2.0, 4096, 0.0, 4096),
        control.on_timeout(3.0, 4096, 0),
    ]
    assert windows == [pytest.approx(408_320)] * 4
    assert control.on_sent(4.0, 4096, 4096) is None
    assert made.on_sent is Control.on_sent  # by this the engine knows not to call it


def test_nothing_is_written_beside_a_users_file(write: Write) -> None:
    path = write(FIXED)
    cca.load(str(path))
    assert os.listdir(path.parent) == ["mine.py"]


def test_a_users_file_is_compiled_as_it_stands(write: Write) -> None:
    """The future imports of the loader are not those of the file."""
    assert cca.load(str(write("x: int = 1\nassert __annotations__['x'] is int\n" + FIXED))) is not None


def test_a_users_file_may_hold_dataclasses_and_other_classes(write: Write) -> None:
    path = write(
        "from __future__ import annotations\nimport dataclasses\nfrom typing import ClassVar\n"
        "@dataclasses.dataclass\nclass State:\n    n: ClassVar[int] = 0\n" + FIXED + "\nAlias = Fixed\n"
    )
    made = cca.load(str(path))
    assert made is not None
    assert made.__name__ == "Fixed"


def test_what_a_users_file_imports_does_not_count(write: Write) -> None:
    path = write("from testbed.engine.cca.nscc import Nscc\nclass Mine(Nscc):\n    pass\n")
    made = cca.load(str(path))
    assert made is not None
    assert made.__name__ == "Mine"
    assert made(NETWORK, PAIR).start() == pytest.approx(1_224_960)
    path = write("from testbed.engine.cca.nscc import Nscc\nfrom testbed.engine.cca import Control\n")
    assert refused(path) == f"{path}: must define one subclass of testbed.engine.cca.Control, but defines none"


def test_several_classes(write: Write) -> None:
    path = write("from testbed.engine.cca import Control\nclass One(Control): ...\nclass Two(One): ...\n")
    wanted = f"{path}: must define one subclass of testbed.engine.cca.Control, but defines 2 of them (One, Two)"
    assert refused(path) == wanted


def test_kinds(write: Write) -> None:
    source = "from testbed.engine.cca.nscc import Nscc\nclass Mine(Nscc):\n    kind = {!r}\n"
    for kind in ("rate", "window"):
        made = cca.load(str(write(source.format(kind))))
        assert made is not None
        assert made.kind == kind
    path = write(source.format("credit"))
    assert refused(path) == f"{path}: Mine.kind is 'credit': give one of window, rate"
    path = write(source.format(["rate"]))
    assert refused(path) == f"{path}: Mine.kind is ['rate']: give one of window, rate"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "no.py", tmp_path / "no" / "no.py"):
        message = f"'{path}' cannot be read (No such file or directory): give cc a readable Python file"
        assert refused(path) == message
        with pytest.raises(InputError) as caught:
            cca.check(str(path), tmp_path)
        assert str(caught.value) == message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    assert "cannot be read (Is a directory)" in refused(tmp_path / "folder.py")
    assert "cannot be read (embedded null byte)" in refused(f"{tmp_path}/null\0.py")


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("x = 1\ndef f(:\n", ", line 2: not valid Python (invalid syntax): correct it"),
        ("x = '\xff'\n", ""),
        ("x = 1\0\n", ""),
        ("-" * 100_000 + "1\n", ""),
    ],
)
def test_a_file_that_is_not_python(source: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(source.encode("latin-1"))
    message = refused(path)
    assert message.startswith(str(path))
    assert "not valid Python" in message
    assert message.endswith(place or ": correct it")
    with pytest.raises(InputError) as caught:
        cca.check("broken.py", tmp_path)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ny = x / 0\n", ", line 2: cannot be imported (ZeroDivisionError: division by zero): correct it"),
        ("import no_such\n", ", line 1: cannot be imported (ModuleNotFoundError: No module named 'no_such')"),
        ("def f():\n    raise ValueError('a\\nb')\nf()\n", ", line 2: cannot be imported (ValueError: a b)"),
        ("raise SystemExit(3)\n", ", line 1: cannot be imported (SystemExit: 3)"),
    ],
)
def test_a_file_that_raises(source: str, message: str, write: Write) -> None:
    path = write(source)
    assert refused(path).startswith(f"{path}{message}")


def test_check_finds_the_file_and_does_not_execute_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("raise RuntimeError\n")
    assert cca.check("mine.py", path.parent) == str(path)
    assert cca.check(str(path), Path("/nowhere")) == str(path)
    assert cca.check("../mine.py", path.parent / "folder") == str(path)
    monkeypatch.chdir(path.parent)
    assert cca.check("mine.py", Path()) == str(path)


def test_what_every_control_must_have(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from testbed.engine.cca import Control\n"
        "class Mine(Control):\n"
        "    def start(self): return 1.0\n"
        "    def on_ack(self, *_): return 1.0\n"
    )
    with pytest.raises(
        InputError, match=r"mine.py: Mine lacks what every control must have: define on_nack, on_timeout"
    ):
        cca.load(str(path))


def test_a_window_is_left_as_it_is_by_what_is_sent() -> None:
    control = Nscc(NETWORK, PAIR)
    before = control.start()
    assert control.on_sent(0.0, 4096, 4096) is None
    assert control.on_ack(0.0, 0, 0.0, False, 0) == before


def test_numpy_is_not_imported() -> None:
    """It takes longer than a run in the virtual machine."""
    program = "import sys; from testbed.engine import cca; cca.load('nscc'); sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)
