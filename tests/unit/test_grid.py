"""Grids: what a cell's address hangs on, the store, confidence intervals, and what the verb refuses."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.main import main
from controller.errors import CannotRunError, InputError
from testbed.experiment import from_mapping
from testbed.figures import incast, real, scale, use
from testbed.figures.confidence import half_width, t_quantile
from testbed.figures.inflation import gain_table
from testbed.figures.options import Options, demand_of_file
from testbed.figures.pictures import sent
from testbed.figures.series import hot_queue
from testbed.grid import cells, pool
from testbed.grid.cells import RESULT, Cell, Files, Halt, cells_of, run_cell
from testbed.grid.processors import borrowed_processor
from testbed.grid.run import run_grid
from testbed.grid.store import Store
from testbed.measure.store import table_bytes
from testbed.scenario import prepare
from testbed.stage import machine, tasks
from testbed.stage.virtual import kernel

MATRIX = "0,5000,64\n4096,0,4096\n64,64,0\n"
RAN = b'{"runs": [{"cct_ns": 5, "inflation": 0.5}]}'


@pytest.fixture(scope="module")
def ports() -> bytes:
    """A table as the store has it."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    names = ("begin_ns", "bucket_ns", "queue_max_bytes", "sent_bytes")
    return table_bytes({"toward": np.array(["h1"]), **{name: np.array([4096]) for name in names}})


@pytest.fixture(autouse=True)
def some_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses name the kernel; here none need be built."""
    monkeypatch.setattr(kernel, "find", lambda: kernel.Kernel(Path("linux"), "6.12", "key"))


def cells_in(folder: Path, matrix: str = MATRIX, name: str = "demand.csv", **keys: Any) -> list[Cell]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(matrix)
    experiment = from_mapping({"demand": [{"file": name}], **keys}, base=folder)
    return cells_of(experiment, tables=("ports",), label="a cell")


def address(folder: Path, **keys: Any) -> str:
    return cells_in(folder, **keys)[0].address


def test_a_cell_is_the_whole_experiment(tmp_path: Path) -> None:
    """Its tables as well; and what is made of it has its address, wherever the files lie."""
    own = {
        "link_failure": [{"link": "h1", "down_ns": 1, "up_ns": 2}],
        "background": [{"source": "h1", "destination": "h2", "bytes": 10_000, "rate_gbps": 12.5, "start_ns": 3}],
    }
    (tmp_path / "demand.csv").write_text(MATRIX.replace("0,5000", "9,5000"))  # a diagonal, which is noted
    demand = [{"file": "demand.csv", "unit": "tokens", "token_bytes": 100}]
    experiment = from_mapping({"demand": demand, "schedule": "rate", **own}, base=tmp_path)
    (cell,) = cells_of(experiment, tables=(), label="a cell")
    (tmp_path / "elsewhere").mkdir()
    again = cells._experiment(cell, tmp_path / "elsewhere")
    assert (again.link_failure, again.background) == (experiment.link_failure, experiment.background)
    assert prepare(again).notes != prepare(experiment).notes  # they name the files
    assert cells._address(cells.canonical(prepare(again), again.runs[0])) == cell.address


def test_an_address_hangs_on_all_that_decides_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = tmp_path / "mine.py"
    control.write_text("# one\n")
    mine = {"schedule": f"rr+{control}"}
    found = [
        address(tmp_path),
        cells_in(tmp_path)[1].address,  # the other run
        address(tmp_path, matrix=MATRIX.replace("5000", "5001")),
        address(tmp_path, seed=1),
        address(tmp_path, queue_bytes=0),
        address(tmp_path, lb="ecmp"),
        address(tmp_path, link_failure=[{"link": "h1", "down_ns": 1, "up_ns": 2}]),
        address(tmp_path, **mine),
    ]
    control.write_text("# two\n")
    found.append(address(tmp_path, **mine))
    for name, value in (("version", "9"), ("key", "another")):
        other = {"version": "6.12", "key": "key", name: value}
        monkeypatch.setattr(kernel, "find", lambda other=other: kernel.Kernel(Path("linux"), **other))
        found.append(address(tmp_path))
    engine = {**cells.versions(), "engine_sha256": "another"}
    monkeypatch.setattr(cells, "versions", lambda: engine)
    found.append(address(tmp_path))
    assert len(set(found)) == len(found)


def test_an_address_does_not_hang_on_places_and_names_of_files(tmp_path: Path) -> None:
    """The keys count as run: what "auto" comes to, here 100 packets, is the same as that written out."""
    one = address(tmp_path / "one", schedule="rate,rr+nscc")
    other = address(tmp_path / "other", name="other.csv", schedule="rate")
    assert one == other == address(tmp_path / "one", schedule="rate", cc="none", queue_bytes=409_600)


def test_an_address_does_not_hang_on_what_a_failed_run_is_given_more_of(tmp_path: Path) -> None:
    """Or the remedy of one cell would run all of them again. The cell itself is run with it."""
    more = cells_in(tmp_path, memory_mib=4096, limit_s=7200, limit_virtual_s=5)[0]
    assert more.address == address(tmp_path)
    assert (more.keys["memory_mib"], more.keys["limit_s"]) == (4096, 7200)
    experiment = cells._experiment(more, tmp_path)
    document = cells.canonical(prepare(experiment), experiment.runs[0])
    assert not {"memory_mib", "limit_s", "limit_virtual_s"} & set(document)


def test_the_limit_of_wall_time_names_its_remedy() -> None:
    class Spinning(machine.Machine):
        def _start(self, task: str, *, interactive: bool) -> subprocess.Popen[bytes]:
            assert (task, interactive) == ("collective", False)
            self._process = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
            return self._process

        def _crash(self, code: int) -> str:
            return f"ended with {code}"

    with pytest.raises(CannotRunError, match=r"^the limit of 0\.1 s of wall time was reached: give more by --limit-s$"):
        Spinning(Path("nowhere")).run("collective", lambda *_: None, limit_s=0.1)


def test_a_cell_runs_only_on_what_it_was_made_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells_in(tmp_path)[0]
    engine = {**cells.versions(), "engine_sha256": "another"}
    monkeypatch.setattr(cells, "versions", lambda: engine)
    with pytest.raises(CannotRunError, match="one version of incastfree"):
        run_cell(cell, Halt(), lambda *_: None, 1)


def test_that_a_run_does_not_end_is_a_result_where_that_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"control": {"cc": "none", "trimming": True}, "recovery_name": "sack", "phases": [{"paced": False}]}
    reason = str(tasks._endless(job, TimeoutError("not ended after 9 us")))
    assert "trimmed headers of many senders" in reason
    assert "its rates are too small" in str(tasks._endless({**job, "phases": [{"paced": True}]}, TimeoutError("no")))

    def endless(*_: object) -> None:
        raise CannotRunError(reason)

    monkeypatch.setattr(cells, "run_schedule", endless)
    cell = cells_in(tmp_path, schedule="rr")[0]
    with pytest.raises(CannotRunError, match="not ended after 9 us"):
        run_cell(cell, Halt(), lambda *_: None, 1)
    allowed = replace(cell, may_not_end=True)
    store = Store(tmp_path / "out")
    store.keep(allowed, run_cell(allowed, Halt(), lambda *_: None, 1))
    assert store.has(allowed)
    assert store.figures(allowed)["gave_up"] == reason
    store.close()


def test_the_store(tmp_path: Path, ports: bytes) -> None:
    cell = cells_in(tmp_path)[0]
    out = tmp_path / "out"
    store = Store(out)
    assert not store.has(cell)
    store.keep(cell, {RESULT: RAN})
    assert not store.has(cell)  # without the table that is wanted of it
    assert store.has(replace(cell, tables=()))
    store.keep(cell, {RESULT: RAN, "ports.parquet": ports})
    assert store.has(cell)
    assert store.figures(cell) == {"cct_ns": 5, "inflation": 0.5}
    with pytest.raises(CannotRunError, match="in use by another command"):
        Store(out)
    partial = out / "cells" / cell.address / ".result.json.123"
    partial.write_text("half")
    store.close()
    again = Store(out)
    assert not partial.exists()
    assert again.has(cell)
    again.close()
    with pytest.raises(InputError, match="not a folder"):
        Store(partial.parent / RESULT)


DAMAGED = {
    "empty": (RESULT, b""),
    "cut off": (RESULT, b"{"),
    "no runs": (RESULT, b"{}"),
    "an empty run": (RESULT, b'{"runs": [{}]}'),
    "a list": (RESULT, b"[]"),
    "no inflation, and not given up": (RESULT, b'{"runs": [{"inflation": null}]}'),
    "no text": (RESULT, b"\xff\xfe\x00"),
    "a table of half its length": ("ports.parquet", None),
    "an empty table": ("ports.parquet", b""),
}


@pytest.mark.parametrize(("name", "content"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_cell_runs_again(
    name: str,
    content: bytes | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ports: bytes,
) -> None:
    """And where it is met while drawing, one line says what to delete."""
    cell = cells_in(tmp_path)[0]
    whole = {RESULT: RAN, "ports.parquet": ports}
    store = Store(tmp_path / "out")
    store.keep(cell, {**whole, name: ports[: len(ports) // 2] if content is None else content})
    folder = tmp_path / "out" / "cells" / cell.address
    with pytest.raises(CannotRunError, match=f"damaged: delete the folder {folder} and"):
        store.figures(cell) if name == RESULT else hot_queue(store, cell)
    monkeypatch.setattr(pool, "run_cell", lambda *_: whole)
    run_grid([cell], store, jobs=1)
    assert capsys.readouterr().err.splitlines()[0] == f"note: {folder / name} is damaged: {cell.label} runs again"
    assert store.has(cell)
    assert store.figures(cell)["inflation"] == 0.5
    run_grid([cell], store, jobs=1)
    assert not capsys.readouterr().err
    store.close()


def test_a_cell_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ports: bytes
) -> None:
    small, large = cells_in(tmp_path), cells_in(tmp_path, matrix=MATRIX.replace("5000", "500000"))
    ran: list[int] = []

    def run(cell: Cell, _halt: Halt, progress: Callable[[int, int], None], at_once: int) -> Files:
        assert at_once == 1
        progress(1, 2)
        ran.append(cell.packets)
        if cell.run == "rate+none":
            raise CannotRunError("out of luck")
        return {RESULT: RAN, "ports.parquet": ports}

    monkeypatch.setattr(pool, "run_cell", run)
    store = Store(tmp_path / "out")
    for count in (4, 2):  # what failed is tried again, what did not is kept
        ran.clear()
        with pytest.raises(CannotRunError, match=r"^2 of 4 cells failed.*--memory-mib, --limit-s"):
            run_grid([*small, *large, *small], store, jobs=1)
        assert len(ran) == count
        assert ran == sorted(ran, reverse=True)
    assert capsys.readouterr().err.splitlines() == [
        *["incastfree: a cell rate: out of luck"] * 2,
        "note: 2 of 4 cells are there already",
        *["incastfree: a cell rate: out of luck"] * 2,
    ]
    store.close()


def test_a_fault_of_ours_is_not_a_cell_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "run_cell", lambda *_: 1 // 0)
    store = Store(tmp_path / "out")
    with pytest.raises(ZeroDivisionError):
        run_grid(cells_in(tmp_path), store, jobs=1)
    store.close()


def test_halt_ends_what_runs_and_what_would_begin() -> None:
    halt = Halt()
    with halt.one_run() as first:
        pass
    assert first.is_set()  # so that who watches it goes away
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        with halt.one_run() as stop:
            begun.set()
            if stop.wait(10):
                ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    halt.halt()
    thread.join(10)
    assert ended.is_set()
    with pytest.raises(CannotRunError, match="interrupted"), halt.one_run():
        pass


def test_nobody_borrows_a_processor_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1001, 1002})
    with borrowed_processor() as one, borrowed_processor() as two, borrowed_processor() as three:
        assert (one, two, three) == (1001, 1002, None)
    with borrowed_processor() as again:
        assert again == 1001


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_students_t(degrees: int, expected: float) -> None:
    """Tables have three digits: NIST/SEMATECH e-Handbook, 1.3.6.7.2."""
    assert t_quantile(degrees) == pytest.approx(expected, abs=5e-4)


def test_confidence_interval() -> None:
    assert half_width([5.0]) is None
    assert half_width([2.0, 2.0, 2.0]) == 0
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776445 * np.sqrt(2.5 / 5), rel=1e-6)


def test_a_matrix_that_is_too_much_for_quick_is_divided(tmp_path: Path) -> None:
    options = Options((), {}, ("ops",), (), (), (), 1, quick=True, scratch=tmp_path)
    file = tmp_path / "m.csv"
    file.write_text("0,30000,1\n5,0,7\n0,8,0\n")
    table = {"file": str(file), "unit": "tokens", "token_bytes": 7168}
    assert demand_of_file(options, table).table == table
    divided = demand_of_file(options, table, most_bytes=64_000_000)
    assert divided.divided_by == 4  # 215 MB of payload, 219 on the wire
    assert divided.table["token_bytes"] == 7168
    assert np.load(divided.table["file"]).tolist() == [[0, 7500, 1], [2, 0, 2], [0, 2, 0]]


def options_of(tmp_path: Path, **changed: Any) -> Options:
    given = {
        "load_balancers": ("ops", "ecmp"),
        "hosts": (4,),
        "skews": (0.5,),
        "bytes_per_sender": (80_000,),
        "seeds": 1,
    }
    return Options(demands=(), keys={}, quick=False, scratch=tmp_path, **{**given, **changed})


def test_cells_of_figure_1(tmp_path: Path) -> None:
    """RR-NSCC, RR, and RR with unlimited queues, unless all are unlimited."""
    found = incast.FIGURE.cells(options_of(tmp_path))
    assert [(row["run"], row["lb"]) for row, _ in found] == [
        (run, lb) for run in ("rr+nscc", "rr", "rr, unlimited queues") for lb in ("ops", "ecmp")
    ]
    assert [cell.may_not_end for _, cell in found] == [False, False, True, True, True, True]
    assert len({cell.address for _, cell in found}) == 6
    unlimited = incast.FIGURE.cells(replace(options_of(tmp_path), keys={"queue_bytes": 0}))
    assert {cell.address for _, cell in unlimited} & {cell.address for _, cell in found[4:]}
    assert len(unlimited) == 4


def test_cells_of_figure_3(tmp_path: Path) -> None:
    """Both runs of all load balancers have one demand; every seed has another one."""
    options = options_of(tmp_path, skews=(0.25, 0.5), hosts=(4, 8), bytes_per_sender=(80_000, 40_000), seeds=3)
    found = scale.FIGURE.cells(options)
    assert len(found) == 2 * 2 * 3 * 2 * 2
    assert {(row["hosts"], row["bytes_per_sender"]) for row, _ in found} == {(4, 80_000), (8, 40_000)}
    assert {cell.keys["seed"] for _, cell in found} == {1, 2, 3}
    # Three orders of popularity of four or eight hosts, here all different.
    assert len({cell.matrices[0].content for _, cell in found}) == 2 * 2 * 3


def test_a_grid_of_real_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="virtual time"):
        cells_in(tmp_path, stage="host")
    with pytest.raises(InputError, match="nothing to send: give another matrix"):
        cells_in(tmp_path, matrix="0,0\n0,0\n")


def test_the_picture_says_what_did_not_end() -> None:
    common = {"demand": "d", "divided_by": 1, "hosts": 2, "wire_bytes": 9, "hot_host": "h1", "run": "rr"}
    rows = [
        {**common, "lb": "ops", "ended": "yes", "begin_us": 0.0, "queue_max_packets": 3.0},
        {**common, "lb": "ecmp", "ended": "no", "begin_us": None, "queue_max_packets": None},
    ]
    ended = [rows[0], {**rows[0], "lb": "ecmp"}]
    assert incast.FIGURE.draw(rows, "title") == incast.FIGURE.draw(rows, "title")
    assert incast.FIGURE.draw(rows, "title") != incast.FIGURE.draw(ended, "title")


def test_the_pictures_say_the_bytes() -> None:
    row = {"demand": "d", "divided_by": 3, "hosts": 2, "wire_bytes": 16_000_000}
    assert sent(row) == "8 MB a sender, divided by 3"
    assert sent({**row, "divided_by": 1}) == "8 MB a sender"
    queue = {"hot_host": "h1", "run": "rr", "lb": "ops", "ended": "yes", "begin_us": 0.0, "queue_max_packets": 3.0}
    inflation = {"run": "rate", "lb": "ops", "seeds": "1", "runs": 1, "inflation_mean_percent": 1.0}
    used = {**queue, "lower_bound_us": 1.0, "mean_percent": 50.0, "hot_percent": 100.0}
    for figure, own in ((incast, queue), (real, {**inflation, "ci95_half_width_percent": None}), (use, used)):
        pictures = {figure.FIGURE.draw([{**row, **own, **changed}], "title") for changed in (
            {}, {"divided_by": 1}, {"wire_bytes": 32_000_000},
        )}  # fmt: skip
        assert len(pictures) == 3, figure.FIGURE.number


def test_what_pacing_gains(tmp_path: Path) -> None:
    """Of the same seeds: 3 and 5 points; of ecmp 3 and -1, where nothing is sure."""
    found = scale.FIGURE.cells(options_of(tmp_path, seeds=2))
    of = {"ops": {1: (0.05, 0.02), 2: (0.08, 0.03)}, "ecmp": {1: (0.05, 0.02), 2: (0.02, 0.03)}}
    store = Store(tmp_path / "out")
    for row, cell in reversed(found):
        inflation = of[row["lb"]][cell.keys["seed"]][row["run"] == "rate"]
        store.keep(cell, {RESULT: json.dumps({"runs": [{"inflation": inflation}]}).encode()})
    assert scale.FIGURE.gain is not None
    ops, ecmp = scale.FIGURE.gain(found, store)
    assert (ops["lb"], ops["hosts"], ops["runs"], "run" in ops) == ("ops", 4, 2, False)
    assert [ops[name] for name in ("rr_nscc_mean_percent", "rate_mean_percent")] == pytest.approx([6.5, 2.5])
    assert ops["gain_mean_points"] == pytest.approx(4)
    assert ops["ci95_half_width_points"] == pytest.approx(
        12.7062, rel=1e-5
    )  # Student's t of one degree: 12.7062, times 1
    assert ecmp["gain_mean_points"] == pytest.approx(1)
    assert [ops["sign"], ecmp["sign"]] == ["(+)", "(+)"]
    surer = [(row, cell) for row, cell in found if row["lb"] == "ops"]
    for row, cell in surer:
        inflation = {"rr+nscc": 0.02, "rate": 0.05 + 0.001 * cell.keys["seed"]}[row["run"]]
        store.keep(cell, {RESULT: json.dumps({"runs": [{"inflation": inflation}]}).encode()})
    (row,) = gain_table(surer, store)
    assert (row["sign"], row["gain_mean_points"]) == ("-", pytest.approx(-3.15))
    (row,) = gain_table([(row, cell) for row, cell in surer if cell.keys["seed"] == 1], store)
    assert (row["sign"], row["ci95_half_width_points"]) == ("(-)", None)
    store.close()


def test_an_earlier_figure_stays_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["figure", "3", "--lb", "ops", "--hosts", "4", "--seeds", "1", "--bytes", "80e3", "--out", str(tmp_path)]
    names = [f"figure-3{suffix}" for suffix in (".csv", ".png", "-gain.csv", "-cells.csv")]
    monkeypatch.setattr(pool, "run_cell", lambda *_: {RESULT: RAN})
    assert main(words) == 0
    earlier = {name: (tmp_path / name).read_bytes() for name in names}
    assert "(0)" in earlier["figure-3-gain.csv"].decode()

    def fail(*_: object) -> Files:
        raise CannotRunError("out of luck")

    monkeypatch.setattr(pool, "run_cell", fail)
    capsys.readouterr()
    assert main([*words, "--queue-bytes", "0"]) == 1
    assert "are still those of an earlier command" in capsys.readouterr().err
    assert {name: (tmp_path / name).read_bytes() for name in names} == earlier

    monkeypatch.setattr(pool, "run_cell", lambda *_: {RESULT: RAN.replace(b"0.5", b"0.25")})
    assert main([*words, "--queue-bytes", "0"]) == 0
    assert not [
        name for name in (".csv", ".png") if (tmp_path / f"figure-3{name}").read_bytes() == earlier[f"figure-3{name}"]
    ]


def test_a_place_that_cannot_be_written_is_said_before_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "figure-3.png").mkdir()
    words = ["figure", "3", "--lb", "ops", "--hosts", "4", "--seeds", "1", "--bytes", "80e3", "--out", str(tmp_path)]
    assert main(words) == 1
    assert capsys.readouterr().err == (
        f"incastfree: {tmp_path}/figure-3.png cannot be written: it is a folder; choose another --out\n"
    )


WRONG = {
    "no number": (["--out", "out"], "required: NUMBER"),
    "figure 5": (["5", "--out", "out"], "invalid choice"),
    "no out": (["3"], "required: --out"),
    "the folder itself": (["3", "--out", "."], "names no folder of its own"),
    "load balancer": (["3", "--out", "out", "--lb", "ops,magic"], "--lb: 'magic' is not known: give a list of ops"),
    "no matrix": (["2", "--out", "out"], "figure 2 needs matrices"),
    "matrix of 3": (["3", "--out", "out", "--demand", "m.csv"], "--demand is not for figure 3"),
    "skew of 2": (["2", "--out", "out", "--demand", "m.csv", "--s", "1"], "--s is not for figure 2"),
    "seeds of 1": (["1", "--out", "out", "--seeds", "2"], "--seeds is not for figure 1"),
    "hosts beside a matrix": (["4", "--out", "out", "--demand", "m.csv", "--hosts", "4"], "--demand says it"),
    "two matrices in 4": (["4", "--out", "out", "--demand", "m.csv", "--demand", "m.csv"], "shows one matrix"),
    "twice the same in 2": (["2", "--out", "out", "--demand", "m.csv", "--demand", "m.csv"], "two files have one name"),
    "two hosts in 4": (["4", "--out", "out", "--hosts", "4,8"], "shows one demand"),
    "bytes for others": (["3", "--out", "out", "--lb", "ops", "--bytes", "1e6,2e6,3e6"], "one for each of the 4"),
    "hosts twice": (["3", "--out", "out", "--lb", "ops", "--hosts", "8,8"], "--hosts names something twice"),
    "no seed": (["3", "--out", "out", "--lb", "ops", "--seeds", "0"], "give 1 to 1000"),
    "no bytes": (["3", "--out", "out", "--lb", "ops", "--bytes", "0"], "at least one packet"),
    "one host": (["3", "--out", "out", "--lb", "ops", "--hosts", "1"], "give 2 to 1000"),
    "text for numbers": (["3", "--out", "out", "--s", "much"], "not a list of numbers"),
    "a key's value": (["3", "--out", "out", "--lb", "ops", "--link-gbps", "0"], "link_gbps is 0"),
    "jobs on a cluster": (["3", "--out", "out", "--lb", "ops", "--hosts", "4", "--jobs", "2", "--dask", "tcp://x:1"], "--jobs"),
    "no jobs": (["3", "--out", "out", "--jobs", "0"], "--jobs: 0: give a whole number, 1 or more"),
    "less than no jobs": (["3", "--out", "out", "--jobs", "-1"], "--jobs: -1: give a whole number, 1 or more"),
    "a unit of nothing": (["1", "--out", "out", "--unit", "tokens"], "--unit says how the file of --demand is read, give one"),
    "tokens of nothing": (["4", "--out", "out", "--token-bytes", "8"], "--token-bytes says how the file of --demand"),
    "a format of nothing": (["4", "--out", "out", "--format", "npy"], "--format says how the file of --demand"),
    "a format of 3": (["3", "--out", "out", "--steps", "1"], "which this figure does not take: leave it out"),
    "zeros in 2": (["2", "--out", "out", "--demand", "zeros.csv"], "zeros.csv: nothing to send: give another matrix"),
    "zeros in 4": (["4", "--out", "out", "--demand", "zeros.csv"], "zeros.csv: nothing to send: give another matrix"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "reason"), WRONG.values(), ids=WRONG)
def test_what_figure_refuses(
    words: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text(MATRIX)
    (tmp_path / "zeros.csv").write_text("0,0\n0,0\n")
    try:
        code: object = main(["figure", *words])
    except SystemExit as ended:
        code = ended.code
    error = capsys.readouterr().err
    assert code == 2
    assert len(error.splitlines()) == 1
    assert reason in error
    assert not list(tmp_path.glob("out/figure*"))
    assert use.FIGURE.number == 4


def test_a_cluster_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed", reason="needs the Python package distributed (extra dask)")
    words = ["figure", "3", "--lb", "ops", "--hosts", "4", "--seeds", "1", "--bytes", "80e3", "--out", str(tmp_path)]
    assert main([*words, "--dask", "nonsense://"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("incastfree: --dask nonsense://: ")
    assert "such as tcp://" in lines[-1]
