"""The doca backend and its C library on the stand-in of tests/doca, which holds them to the order of calls."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.load_doca import read_bindings
from controller.cli.main import main
from controller.errors import CannotRunError, InputError
from controller.nic import attach_nic, backend_of, open_nic
from controller.nic import doca as backend
from controller.nic.doca import DocaNic, Library, State, default_settings
from controller.nic.doca_message import RATE_ONE, REQUEST_BYTES, Binding, bindings_message, rates_message
from controller.nic.rate_table import RATE_SLOTS
from tests.conftest import REPOSITORY
from tests.unit.doca import EVENT_TX, STANDIN_FAILURES, compile_standin

LINE = Fraction(200) * 10**9
BINDINGS = [Binding(0x100 + slot, slot) for slot in range(3)]
SET_UP = (
    "create_list dev_open create get_min_num_threads get_max_num_threads set_app set_thread_affinity set_mailbox start"
)
SEND = "get_process_state get_request_buffer send get_response_buffer"
CLOSE = "get_process_state stop destroy dev_close"


@pytest.fixture(scope="module")
def library_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_standin(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def library(library_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.setenv("STANDIN_LOCK", str(tmp_path / "lock"))
    monkeypatch.delenv("STANDIN_DELAY_MS", raising=False)
    found = Library(library_file, standin=True)
    found.handle.standin_journal.restype = ctypes.c_char_p
    found.handle.standin_reset()
    yield found
    found.handle.standin_reset()
    assert found.handle.standin_open_objects() == 0, "a device, a list or a context was left open"


def load(library: Library, device: str = "mlx5_0", **options: Any) -> DocaNic:
    return DocaNic.load(device, LINE, bindings=options.pop("bindings", BINDINGS), library=library, **options)


def journal(library: Library) -> str:
    return str(library.handle.standin_journal().decode())


def words(*rates: int) -> bytes:
    return struct.pack(f"<{len(rates)}I", *rates)


# ---- the order of calls ----


def test_from_load_to_close(library: Library) -> None:
    with load(library) as nic:
        nic.write_rates(words(10, 20, 30))
        assert nic.read_rates() == (1, words(10, 20, 30) + bytes(4 * (RATE_SLOTS - 3)))
        nic.write_rates(np.array([7], dtype="<u4"))
        assert nic.read_rates() == (2, words(7) + bytes(4 * (RATE_SLOTS - 1)))
        assert nic.state is State.ACTIVE
        context = (ctypes.c_uint32 * 12)()
        rate = library.handle.standin_event(context, EVENT_TX, 0, 15, 0x100, 0, 128, 0)
        assert rate == 7
    assert journal(library) == " ".join([SET_UP, *[SEND] * 5, "get_process_state", CLOSE])


def test_closing_twice_is_closing_once_and_nothing_works_after(library: Library) -> None:
    nic = load(library)
    nic.close()
    nic.close()
    for use in (lambda: nic.write_rates(b""), nic.read_rates, lambda: nic.state):
        with pytest.raises(CannotRunError, match="was closed"):
            use()
    # And it can be loaded anew: the program counts from 1 again.
    with load(library) as again:
        again.write_rates(words(1))
        assert again.read_rates()[0] == 1


@pytest.mark.parametrize("step", [*SET_UP.split(), "get_request_buffer", "send", "get_response_buffer"])
def test_what_fails_on_the_way_is_said_and_nothing_is_left(library: Library, step: str) -> None:
    """That nothing is left is looked at by the fixture."""
    library.handle.standin_fail(step.encode(), STANDIN_FAILURES["no memory"])
    with pytest.raises((CannotRunError, InputError), match="No memory") as raised:
        load(library)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("step", ["stop", "destroy", "dev_close"])
def test_what_fails_at_the_end_is_said(library: Library, step: str) -> None:
    nic = load(library)
    before = library.handle.standin_open_objects()
    library.handle.standin_fail(step.encode(), STANDIN_FAILURES["I/O failed"])
    with pytest.raises(CannotRunError, match=rf"mlx5_0: doca_(pcc_)?{step} failed"):
        nic.close()
    nic.close()
    # What could not be freed is left to the end of the process.
    assert 0 < library.handle.standin_open_objects() <= before
    library.handle.standin_forget()


def test_a_program_in_error_is_destroyed_and_not_stopped(library: Library) -> None:
    for state in (State.ERROR, State.DEACTIVATED):
        nic = load(library)
        library.handle.standin_break(state)
        with pytest.raises(CannotRunError, match=r"the DPU's program is (in error|deactivated)"):
            nic.write_rates(words(1))
        assert nic.state is state
        library.handle.standin_journal()
        nic.close()
        assert journal(library).endswith("get_process_state destroy dev_close")
        assert "stop" not in journal(library)
        library.handle.standin_reset()


def test_one_program_is_active_at_a_time(library: Library) -> None:
    first = load(library)
    with pytest.raises(CannotRunError, match="the DPU's program is in standby"):
        load(library)
    first.write_rates(words(5))
    first.close()
    load(library).close()


def test_devices_that_are_none_or_run_no_programs(library: Library) -> None:
    with pytest.raises(InputError, match="no DOCA device mlx5_7"):
        load(library, "mlx5_7")
    with pytest.raises(InputError, match="mlx5_1: this device runs no program"):
        load(library, "mlx5_1")


def test_threads(library: Library) -> None:
    with pytest.raises(CannotRunError, match="3 threads of the DPA are too few: this device needs 4"):
        load(library, threads=(1, 2, 3))
    load(library, threads=tuple(range(100))).close()  # more than it has: as many as it takes


# ---- messages ----


def test_what_the_dpu_refuses_is_said_and_changes_nothing(library: Library) -> None:
    with load(library) as nic:
        nic.write_rates(words(10))
        with pytest.raises(CannotRunError, match=r"refused a message \(duplicate\); what was in force stays"):
            nic.write_bindings([Binding(0x100, 0), Binding(0x100, 1)], default_settings(LINE))
        with pytest.raises(CannotRunError, match=r"refused a message \(bad binding\)"):
            nic.write_bindings([Binding(1, 0)], default_settings(LINE))
        with pytest.raises(ValueError, match="above the line rate"):
            nic.write_rates(words(RATE_ONE + 1))
        with pytest.raises(ValueError, match="at most 1024 slots"):
            nic.write_rates(bytes(4 * RATE_SLOTS + 4))
        assert nic.read_rates()[:1] == (1,)
        nic.write_rates(words(11))
        nic.write_bindings(BINDINGS, default_settings(LINE))
        assert nic.read_rates() == (2, words(11) + bytes(4 * (RATE_SLOTS - 1)))


def test_the_largest_messages_fit_into_the_mailbox(library: Library) -> None:
    bindings = [Binding(2 + number, number % RATE_SLOTS) for number in range(2048)]
    assert len(bindings_message(1, default_settings(LINE), bindings)) == REQUEST_BYTES
    with load(library, bindings=bindings) as nic:
        rates = np.arange(1, RATE_SLOTS + 1, dtype="<u4")
        nic.write_rates(rates)
        assert nic.read_rates() == (1, rates.tobytes())


def raw_send(library: Library, nic: DocaNic, message: bytes) -> tuple[int, str]:
    why, size = ctypes.create_string_buffer(256), ctypes.c_uint32()
    reply = ctypes.create_string_buffer(64)
    failure = library.handle.pcc_host_send(
        nic._context, message, len(message), reply, 64, ctypes.byref(size), why, ctypes.c_size_t(256)
    )
    return failure, why.value.decode()


def test_a_message_that_is_larger_than_the_mailbox_is_not_sent(library: Library) -> None:
    with load(library) as nic:
        failure, why = raw_send(library, nic, bytes(REQUEST_BYTES + 1))
        assert (failure, why) == (2, f"a message of {REQUEST_BYTES + 1} bytes is larger than the mailbox")
        assert journal(library).count("send") == 1


def test_the_stand_in_checks_order_and_sizes(library: Library) -> None:
    """Or it would prove nothing: each of these the host side must never do, and the stand-in refuses."""
    handle = library.handle
    infos, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32()
    handle.doca_devinfo_create_list(ctypes.byref(infos), ctypes.byref(count))
    device, pcc, buffer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert handle.doca_dev_open(ctypes.c_void_p(infos[0]), ctypes.byref(device)) == STANDIN_FAILURES["not supported"]
    assert handle.doca_dev_open(ctypes.c_void_p(infos[1]), ctypes.byref(device)) == 0
    handle.doca_devinfo_destroy_list(infos)
    assert handle.doca_pcc_create(device, ctypes.byref(pcc)) == 0
    size, status = ctypes.c_uint32(), ctypes.c_uint32()
    bad = STANDIN_FAILURES["bad state"]

    def send(request_bytes: int) -> int:
        return int(handle.doca_pcc_mailbox_send(pcc, request_bytes, ctypes.byref(size), ctypes.byref(status)))

    assert send(4) == handle.doca_pcc_mailbox_get_request_buffer(pcc, ctypes.byref(buffer)) == bad
    assert handle.doca_pcc_start(pcc) == bad  # without a program or threads
    units = (ctypes.c_uint32 * 4)(1, 2, 3, 4)
    handle.doca_pcc_set_app(pcc, ctypes.c_void_p.in_dll(handle, "incastfree_pcc_app"))
    assert handle.doca_pcc_set_thread_affinity(pcc, 3, units) == STANDIN_FAILURES["invalid value"]
    assert handle.doca_pcc_set_thread_affinity(pcc, 4, units) == 0
    assert handle.doca_pcc_set_mailbox(pcc, 64, 64) == 0
    assert handle.doca_pcc_start(pcc) == 0
    for late in (handle.doca_pcc_set_app, handle.doca_pcc_start):
        assert late(pcc, None) == bad
    assert handle.doca_pcc_set_mailbox(pcc, 4, 4) == bad
    handle.doca_pcc_get_process_state(pcc, ctypes.byref(status))
    assert status.value == State.ACTIVE
    assert send(1 << 20) == STANDIN_FAILURES["invalid value"]
    assert handle.doca_pcc_destroy(pcc) == handle.doca_dev_close(device) == STANDIN_FAILURES["in use"]
    assert handle.doca_pcc_stop(pcc) == 0
    assert handle.doca_pcc_stop(pcc) == bad
    assert handle.doca_pcc_destroy(pcc) == handle.doca_dev_close(device) == 0


def test_a_send_blocks_only_its_own_thread(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """And two threads of one NIC take turns."""
    with load(library) as nic:
        monkeypatch.setenv("STANDIN_DELAY_MS", "200")
        writers = [threading.Thread(target=nic.write_rates, args=(words(number),)) for number in (1, 2)]
        begin = time.monotonic()
        for writer in writers:
            writer.start()
        ticks = 0
        while any(writer.is_alive() for writer in writers):
            time.sleep(0.01)
            ticks += 1
        assert time.monotonic() - begin >= 0.4
        assert ticks > 10
        monkeypatch.delenv("STANDIN_DELAY_MS")
        assert nic.read_rates()[0] == 2


# ---- other processes ----

LOADER = """
import sys
from fractions import Fraction
from pathlib import Path
from controller.nic.doca import DocaNic, Library
from controller.nic.doca_message import Binding
nic = DocaNic.load("mlx5_0", Fraction(200 * 10**9), bindings=[Binding(256, 0)], library=Library(Path(sys.argv[1]), standin=True))
print("loaded", flush=True)
import os
os.environ["STANDIN_DELAY_MS"] = "60000"
print("sending", flush=True)
nic.write_rates(b"\\1\\0\\0\\0")
"""


def test_killed_in_mid_send_it_leaves_the_device_to_the_next(library: Library, library_file: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADER, str(library_file)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert [process.stdout.readline().strip() for _ in range(2)] == ["loaded", "sending"]
        time.sleep(0.3)
        with pytest.raises(CannotRunError, match="in standby"):
            load(library)
    finally:
        process.kill()
        process.wait()
    with load(library) as nic:
        nic.write_rates(words(9))


Command = Callable[..., "subprocess.Popen[str]"]

RUN = """
import sys
from pathlib import Path
from controller.cli.main import main
from controller.nic import doca
real = doca.Library
doca.Library = lambda: real(Path(sys.argv[1]), standin=True)
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def command(library: Library, library_file: Path, tmp_path: Path) -> Iterator[Command]:
    """incastfree load --nic doca on the stand-in, in a process of its own."""
    del library  # it says where the lock is
    (tmp_path / "demand.csv").write_text("0,500000,600000\n700000,0,800000\n100000,200000,0\n")
    (tmp_path / "bindings.toml").write_text("0x1a4 = 1\n0x1a5 = 2\n[1]\n0x1a4 = 2\n")
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> subprocess.Popen[str]:
        words = ["load", "demand.csv", "--nic", "doca", "--dev", "mlx5_0", "--rank", "0", "--link-gbps", "200", *more]
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(library_file), *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_paces_until_it_is_ended(command: Command, number: signal.Signals) -> None:
    process = command("--bindings", "bindings.toml")
    assert process.stdout
    line = process.stdout.readline()
    assert "mlx5_0: 2 rates written for 3 QPs" in line
    assert "% of 200 Gb/s together, generation 1; in force until this command ends" in line
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "mlx5_0: not paced any more\n", "")


def test_two_commands(command: Command) -> None:
    first = command("--bindings", "bindings.toml")
    assert first.stdout
    first.stdout.readline()
    second = command("--bindings", "bindings.toml")
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out) == (1, "")
    assert err == "incastfree: mlx5_0: the DPU's program is in standby; see docs/doca.md\n"


# ---- without a DPU ----


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "demand.csv").write_text("0,5,6\n7,0,8\n1,2,0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "options", "message", "code"),
    [
        (None, [], "--nic doca needs --bindings", 2),
        (None, ["--bindings", "missing.toml"], "missing.toml does not exist", 2),
        ("x", ["--bindings", "b.toml"], "b.toml is not TOML", 2),
        ("1 = 1", ["--bindings", "b.toml"], "'1' is not a QP number: give 2 to 16777215", 2),
        ("0x1000000 = 1", ["--bindings", "b.toml"], "'0x1000000' is not a QP number", 2),
        ("QP = 1", ["--bindings", "b.toml"], "'QP' is not a QP number", 2),
        ("7 = 3", ["--bindings", "b.toml"], "QP 7: 3 is not a rank: ranks are 0 to 2", 2),
        ('7 = "1"', ["--bindings", "b.toml"], "QP 7: '1' is not a rank", 2),
        ("7 = 1\n0x7 = 2", ["--bindings", "b.toml"], "QP 0x7 of function 0 is bound twice", 2),
        ("[65536]\n7 = 1", ["--bindings", "b.toml"], "'65536' is not a function", 2),
        ("7 = 1", ["--bindings", "b.toml"], "no QP to rank 2, but rank 0 sends to it", 2),
        ("7 = 1\n8 = 2", ["--bindings", "b.toml", "--rtt-us", "0"], "--rtt-us 0", 2),
        ("7 = 1\n8 = 2", ["--bindings", "b.toml"], "--dev nothing: there is no such RDMA device", 2),
        ("7 = 1\n8 = 2", ["--bindings", "b.toml", "--link-gbps", "200"], "was not built: run make -C dpu", 1),
    ],
)
def test_one_line_for_each(
    files: Path, capsys: pytest.CaptureFixture[str], text: str | None, options: list[str], message: str, code: int
) -> None:
    if text is not None:
        (files / "b.toml").write_text(text)
    given = ["load", "demand.csv", "--nic", "doca", "--dev", "nothing", "--rank", "0", *options]
    assert main(given) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("files")
def test_ebpf_still_needs_its_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "demand.csv", "--dev", "lo", "--rank", "0"]) == 2
    assert "--nic ebpf needs --peers" in capsys.readouterr().err


def test_too_many_bindings(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("\n".join(f"{number} = 0" for number in range(2, 2051)))
    with pytest.raises(InputError, match="2049 QPs are more than the DPU's 2048"):
        read_bindings(file, 4)


def test_functions(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("420 = 3\n[2]\n420 = 1\n0x1a5 = 0\n")
    assert read_bindings(file, 4) == [Binding(420, 3), Binding(420, 1, 2), Binding(421, 0, 2)]


def test_nobody_takes_the_stand_in_for_a_dpu(library_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is put, even in the place of the real library."""
    monkeypatch.setattr(backend, "LIBRARY", library_file)
    with pytest.raises(CannotRunError, match="is the stand-in of the tests, which drives no DPU"):
        Library(library_file)
    with pytest.raises(CannotRunError, match="is the stand-in of the tests, which drives no DPU"):
        open_nic("doca", "mlx5_0", LINE, library=Library(backend.LIBRARY))


def test_it_is_neither_built_nor_installed_with_the_rest() -> None:
    for name in ("Makefile", "dpu/Makefile", "setup.py", "pyproject.toml", "MANIFEST.in", ".ci/run"):
        text = (REPOSITORY / name).read_text()
        assert not re.search(r"libstandin|standin\.c|stand-in", text)
        assert "tests/doca" not in text.replace("tests/doca/*.[ch])", "")  # what clang-format looks at
    for file in [*(REPOSITORY / "controller").rglob("*.py"), *(REPOSITORY / "dpu").rglob("*.c")]:
        assert "libstandin" not in file.read_text()


def test_the_interface(library: Library) -> None:
    """As controller.nic.Nic says it, by name."""
    nic = open_nic("doca", "mlx5_0", LINE, bindings=BINDINGS, library=library)
    assert (nic.capabilities.steps, nic.capabilities.slots) == (1 << 20, 1024)
    assert (nic.capabilities.update_ns, nic.capabilities.update_basis) == (13_200_000, "published")
    nic.close()
    module = backend_of("doca")
    with pytest.raises(CannotRunError, match="for the process that loaded it alone"):
        attach_nic("doca", "mlx5_0")
    with pytest.raises(CannotRunError, match="ends with the process"):
        module.unload("mlx5_0")


def test_where_the_sdk_is_not_its_build_says_so_in_one_line(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make: apt-get install make")
    command = ["make", "-s", "-C", str(REPOSITORY / "dpu"), f"DOCA={tmp_path}", "check"]
    # Below `make test` it would be told that it is a second make, and say so.
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    assert made.returncode == 2
    said = [line for line in made.stderr.splitlines() if not line.startswith("make: ")]
    assert len(said) == 1
    assert said[0].startswith("dpu: missing: dpacc")
    assert said[0].endswith("install NVIDIA's DOCA SDK with DPACC (docs/doca.md), or give DOCA=PATH of one")


def test_line_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /sys/class/infiniband says it."""
    monkeypatch.setattr(backend, "_INFINIBAND", tmp_path)
    port = tmp_path / "mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    assert backend.line_rate_bps("mlx5_0") == LINE
    (port / "rate").write_text("\n")
    with pytest.raises(InputError, match="does not say its speed"):
        backend.line_rate_bps("mlx5_0")


def test_a_rates_message_is_what_the_testbed_sends(library: Library) -> None:
    """The model and the backend speak through one serialiser: the bytes that reach the mailbox are its own."""
    with load(library) as nic:
        failure, _ = raw_send(library, nic, rates_message(1, words(3)))
        assert failure == 0
        assert nic.read_rates() == (1, words(3) + bytes(4 * (RATE_SLOTS - 1)))
