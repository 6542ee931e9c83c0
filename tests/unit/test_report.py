"""The page of a comparison: what is in it, what it says where something is missing, and how a browser shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from controller.cli.main import main
from testbed.experiment import KEYS, from_mapping
from testbed.measure.results import empty_figures
from testbed.measure.store import write_table
from testbed.report.figures import Plot, draw_plots
from testbed.report.saved import read_saved
from testbed.report.table import ROWS
from testbed.runner import prepare_folder
from testbed.scenario import prepare
from tests.conftest import REPOSITORY
from tests.unit.chromium import Chromium, Tab, find_chromium

MTU: Final = 4096
STRANGE: Final = "rate+<img src=x onerror=boom()>&amp;"
"""A control of a user's own may be called so."""
NOTE: Final = "m</script><script>boom()</script>.csv: 16 bytes on the diagonal are local"
STEPS: Final = 100
STEP_NS: Final = 1000.0
PLOTS: Final = ("queue", "utilisation", "flows", "receivers", "ports")


def figures(name: str) -> dict[str, Any]:
    """Of one run on three hosts, as result.json has them: two phases, the bottleneck first a receiver, then a sender."""
    return {
        "run": name,
        **{key.name: list(key.default) if isinstance(key.default, tuple) else key.default for key in KEYS},
        "hosts": 3,
        "queue_bytes": 200 * MTU,
        "ecn_kmin_bytes": 40 * MTU,
        "ecn_kmax_bytes": 160 * MTU,
        "schedule": name.partition("+")[0],
        "link_gbps_of": {"h3": 400},
        "rtt_ns": 8166.4,
        "rto_ns": 64152,
        "link_failure": [],
        "demand": ["/matrices/first.csv", "/matrices/second.csv"],
        "demand_sha256": ["ab" * 32, "cd" * 32],
        "unit": ["tokens", "tokens"],
        "token_bytes": [7168, 7168],
        "phase_names": ["dispatch", "<combine>"],
        "notes": [NOTE],
        "version": "0.1.0",
        "python_version": "3.11.2",
        "kernel_version": "6.12.117",
        "kernel_key": "ba0ed6b7b1be39c8",
        "bmv2_version": None,
        "cc_sha256": None,
        **empty_figures(3),
        "cct_ns": 99_000.5,
        "lower_bound_ns": 80_000.0,
        "inflation": 0.23750625,
        "bottleneck": "receiver h2, sender h3",
        "bottleneck_busy": 0.5,
        "hot_queue_max_bytes": 17 * MTU + 1,
        "hot_host": "h2",
        "fabric_queue_max_bytes": 3 * MTU,
        "delivered_bytes": 6_000_000,
        "expected_bytes": 6_000_000,
        "marks": 4321,
        "receiver_done_ns": [40_000.0, 99_000.5, None],
        "wall_s": 1.26,
    }


def write_tables(folder: Path, deepest_packets: int) -> None:
    """Ports 0 to 2 are the hosts' NICs, 3 to 5 those that face them, 6 and 7 lie between switches. A queue grows and falls."""
    names = [("h1-eth0", "leaf1"), ("h2-eth0", "leaf1"), ("h3-eth0", "leaf2")]
    names += [("leaf1-eth1", "h1"), ("leaf1-eth2", "h2"), ("leaf2-eth1", "h3")]
    names += [("leaf1-eth3", "spine1"), ("spine1-eth1", "leaf1")]
    ports, steps = len(names), np.arange(STEPS)
    shape = (deepest_packets * MTU * np.sin(np.pi * steps / (STEPS - 1))).astype(np.int64)
    queue = np.concatenate([shape if port == 4 else np.full(STEPS, port * MTU // 2) for port in range(ports)])
    folder.mkdir(parents=True, exist_ok=True)
    write_table(
        folder / "ports.parquet",
        {
            "phase": np.tile((steps >= STEPS // 2).astype(np.int32), ports),
            "port": np.repeat(np.arange(ports, dtype=np.int32), STEPS),
            "name": np.repeat([name for name, _ in names], STEPS),
            "toward": np.repeat([toward for _, toward in names], STEPS),
            "begin_ns": np.tile(steps * STEP_NS, ports),
            "bucket_ns": np.full(ports * STEPS, STEP_NS),
            "queue_max_bytes": queue,
            # 100,000 B in 1,000 ns are 800 Gb/s.
            "sent_bytes": np.repeat(np.arange(ports) * 10_000, STEPS),
        },
    )
    write_table(
        folder / "flows.parquet",
        {
            "bytes": np.array([10, 20, 30, 40]),
            "delivered_bytes": np.array([10, 20, 30, 39]),
            "last_arrival_ns": np.array([30_000.0, 99_000.5, 10_000.0, np.nan]),
        },
    )


def write_results(folder: Path, runs: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"runs": runs}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder as run and compare leave it."""
    folder = tmp_path / "my results"
    runs = [figures("rr"), {**figures(STRANGE), "marks": 0, "bottleneck_busy": None}]
    write_results(folder, runs)
    for number, run in enumerate(runs):
        write_tables(folder / run["run"], 200 >> 3 * number)
    (folder / "experiment.toml").write_text(
        'schedule = ["rr", "rate+x.py", "rr+nscc"]\n# </pre><script>boom()</script>\n'
    )
    return folder


def report(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str, str]:
    code = main(["report", str(folder), *words])
    return code, *capsys.readouterr()


def made(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    """The page without plotly's own code."""
    code, out, _ = report(capsys, folder)
    assert (code, out) == (0, f"report            {folder / 'report.html'}\n")
    text = (folder / "report.html").read_text(encoding="utf-8")
    return re.sub(r"<script>.*?</script>", "", text, count=1, flags=re.DOTALL)


def plots_of(folder: Path) -> dict[str, Plot]:
    return {plot.name: plot for plot in draw_plots(read_saved(folder))}


def traces(plot: Plot) -> list[dict[str, Any]]:
    assert plot.specification is not None
    data: list[dict[str, Any]] = json.loads(plot.specification)["data"]
    return data


def values(of: Any) -> list[Any]:
    """Of an axis of a trace, which newer versions of plotly write in base64."""
    if isinstance(of, list):
        return of
    import base64

    return [float(value) for value in np.frombuffer(base64.b64decode(of["bdata"]), dtype=np.dtype(of["dtype"]))]


def test_the_figures_are_those_of_the_table(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    text = made(capsys, results)
    table = text.split('<table class="figures">')[1].split("</table>")[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    cells = {unescape(label): re.findall(r"<td>(.*?)</td>", row) for label, row in rows}
    assert list(cells) == [row.label for row in ROWS]
    assert cells["CCT [us]"] == ["99.00", "99.00"]
    assert cells["CCT over bound [%]"] == ["23.75", "23.75"]
    assert cells["hot queue [packets]"] == ["18", "18"]
    assert cells["hot queue at"] == ["h2", "h2"]
    assert cells["marked packets"] == ["4321", "0"]
    assert cells["bottleneck busy [%]"] == ["50.00", "-"]
    assert re.findall(r'<th scope="col">(.*?)</th>', table) == ["figure", "rr", escape(STRANGE)]


def test_the_experiment_is_all_there(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    text = made(capsys, results)
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th><td>(.*?)</td>', text))
    assert {key.name for key in KEYS} <= set(rows)
    assert rows["schedule"] == escape(f"rr: rr; {STRANGE}: rate")
    assert rows["link_gbps_of"] == "h3 = 400"
    assert rows["queue_bytes"] == str(200 * MTU)
    assert rows["phase_names"] == "dispatch, &lt;combine&gt;"
    assert rows["trimming"] == "true"
    assert "<td>6.12.117</td>" in text
    command = re.search(r"<pre><code>(.*?)</code>", text)
    assert command
    assert unescape(command[1]) == f"incastfree run '{results / 'experiment.toml'}' --out results/again"


def test_notes_say_what_figures_do_not(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    text = unescape(made(capsys, results))
    assert NOTE in text
    assert "experiment.toml names 3 runs, of which 2 have results" in text
    assert f"{STRANGE}: the lower bound is too short to say how busy" in text
    assert "were not delivered" not in text
    runs = [{**figures("rr"), "delivered_bytes": 5_999_000, "cct_ns": None, "stage": "host", "queue_bytes": 0}]
    runs[0]["late_packets"] = 7
    del runs[0]["notes"]
    write_results(results, runs)
    (results / "experiment.toml").unlink()
    text = unescape(made(capsys, results))
    assert "rr: 1000 bytes were not delivered" in text
    assert "Queues were unlimited" in text
    assert "count as having come when they were due: rr 7." in text
    assert "kept no notes" in text
    assert "no experiment.toml" in text


def test_what_comes_from_files_is_text(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    text = made(capsys, results)
    assert "boom()" in text
    assert not re.search(r"<(img|combine)|<script>boom", text)


def test_the_page_is_of_one_piece(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    text = made(capsys, results)
    assert not re.search(r"<[^>]*\s(src|href)=", text)
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert f"<title>{escape(f'incastfree: rr, {STRANGE} on 3 hosts')}</title>" in text
    assert len(re.findall("<h1>", text)) == 1


def test_meanings_are_those_of_the_documentation() -> None:
    said = " ".join((REPOSITORY / "docs" / "model.md").read_text().split())
    for row in ROWS:
        assert row.meaning in said, row.label


def test_another_file(capsys: pytest.CaptureFixture[str], results: Path, tmp_path: Path) -> None:
    assert report(capsys, results, "--out", str(tmp_path / "x.html"))[0] == 0
    assert (tmp_path / "x.html").exists()
    assert not (results / "report.html").exists()
    code, out, err = report(capsys, results, "--out", str(tmp_path / "nowhere" / "x.html"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "cannot be written" in err


def test_the_queue_is_that_of_the_hottest_port(results: Path) -> None:
    rr, rate, bound = traces(plots_of(results)["queue"])
    expected = 200 * np.sin(np.pi * np.arange(STEPS) / (STEPS - 1))
    assert np.allclose(values(rr["y"]), np.maximum(0.5, (expected * MTU).astype(int) / MTU))
    assert values(rr["x"])[:3] == [0, 1, 2]
    assert rr["name"] == "rr: h2, at most 200"
    assert max(values(rate["y"])) == pytest.approx(25, rel=1e-3)
    assert bound["x"] == [80, 80]


def test_the_bottleneck_is_that_of_each_phase(results: Path) -> None:
    """First the port that faces h2 (40,000 B a step), then the NIC of h3 (20,000 B, of half the speed)."""
    percent = values(traces(plots_of(results)["utilisation"])[0]["y"])
    assert percent == pytest.approx([40.0] * STEPS)
    table = read_saved(results).table("rr", "ports", ("port", "sent_bytes"))
    assert sorted(set(table["sent_bytes"][table["port"] == 2])) == [20_000]


def test_flows_that_never_completed_count(results: Path) -> None:
    rr = traces(plots_of(results)["flows"])[0]
    assert values(rr["x"]) == pytest.approx([0, 10, 30, 99.0005])
    assert values(rr["y"]) == [0, 25, 50, 75]
    assert rr["name"] == "rr: 3 of 4 flows"


def test_receivers_that_got_nothing_have_no_mark(results: Path) -> None:
    rr = traces(plots_of(results)["receivers"])[0]
    assert (rr["x"], values(rr["y"])) == (["h1", "h2"], [40, 99.0005])


def test_the_deepest_ports_are_those_of_switches(results: Path) -> None:
    rr = traces(plots_of(results)["ports"])[0]
    assert rr["y"] == ["leaf1 to h2", "spine1 to leaf1", "leaf1 to spine1", "leaf2 to h3", "leaf1 to h1"]
    assert values(rr["x"])[1:] == [3.5, 3, 2.5, 1.5]


def test_long_series_keep_their_peaks(results: Path) -> None:
    steps = np.arange(10_000)
    queue = np.where(steps == 7777, 99 * MTU, MTU)
    zeros = np.zeros(len(steps), dtype=np.int32)
    columns = {"phase": zeros, "port": zeros + 4, "name": np.full(len(steps), "leaf1-eth2")}
    columns |= {"toward": np.full(len(steps), "h2"), "begin_ns": steps * 8.0, "bucket_ns": np.full(len(steps), 8.0)}
    write_table(results / "rr" / "ports.parquet", {**columns, "queue_max_bytes": queue, "sent_bytes": zeros + 400})
    plots = plots_of(results)
    queue_trace, use_trace = traces(plots["queue"])[0], traces(plots["utilisation"])[0]
    assert len(values(queue_trace["y"])) < 2000
    assert max(values(queue_trace["y"])) == 99
    peak = values(queue_trace["x"])[values(queue_trace["y"]).index(99)]
    assert peak <= 7777 * 8 / 1000 < peak + 0.1
    assert values(use_trace["y"]) == pytest.approx([50] * len(values(use_trace["y"])))


def test_runs_are_told_apart_without_colour(results: Path) -> None:
    runs = [figures(f"rr+{number}") for number in range(14)]
    write_results(results, runs)
    for run in runs:
        write_tables(results / run["run"], 200)
    plots = plots_of(results)
    for name in ("queue", "utilisation", "flows"):
        looks = [(trace["line"].get("dash"), trace.get("marker", {}).get("symbol")) for trace in traces(plots[name])]
        assert len(set(looks)) == 15  # and the lower bound


def no_result(folder: Path) -> None:
    (folder / "result.json").unlink()


def of_agree(folder: Path) -> None:
    no_result(folder)
    (folder / "agreement.json").write_text("[]")


def rewritten(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        result = json.loads((folder / "result.json").read_text())
        change(result["runs"][0])
        (folder / "result.json").write_text(json.dumps(result))

    return spoil


def content(text: str | bytes) -> Callable[[Path], object]:
    raw = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / "result.json").write_bytes(raw)


BAD: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "no result": (no_result, "does not exist: give the folder that incastfree run"),
    "of agree": (of_agree, "kernel"),
    "half": (content('{"runs": [{"run": "rr"'), "is not JSON"),
    "NaN": (content('{"runs": [NaN]}'), "is not JSON"),
    "deep": (content("[" * 100_000), "is not JSON"),
    "binary": (content(b"\xff\xfe"), "is not text"),
    "of another tool": (content('{"results": [1, 2]}'), "holds no runs"),
    "a list": (content("[1, 2]"), "holds no runs"),
    "no run": (content('{"runs": []}'), "holds no runs"),
    "runs of another tool": (content('{"runs": [{"run": "x"}]}'), "has no 'cct_ns'"),
    "a key is missing": (rewritten(lambda run: run.pop("timeouts")), "has no 'timeouts'"),
    "a text": (rewritten(lambda run: run.update(cct_ns="fast")), "cct_ns of run 1 is 'fast'"),
    "true": (rewritten(lambda run: run.update(marks=True)), "marks of run 1 is 'True'"),
    "no packet": (rewritten(lambda run: run.update(mtu_bytes=0)), "mtu_bytes"),
    "a time is text": (rewritten(lambda run: run.update(receiver_done_ns=["x"])), "receiver_done_ns"),
    "outside": (rewritten(lambda run: run.update(run="../rr")), "no name of a folder"),
    "one name": (rewritten(lambda run: run.update(run=STRANGE)), "two runs have one name"),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD.values(), ids=BAD)
def test_bad_results(
    capsys: pytest.CaptureFixture[str], results: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    spoil(results)
    code, out, err = report(capsys, results)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert reason in err
    assert str(results) in err
    assert not (results / "report.html").exists()


def test_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("nowhere", "file"):
        (tmp_path / "file").write_text("")
        code, _, err = report(capsys, tmp_path / name)
        assert (code, err.count("\n")) == (2, 1)


def test_a_missing_table_is_said(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    (results / "rr" / "ports.parquet").unlink()
    (results / "rr" / "flows.parquet").write_bytes(b"PAR1 no more of it")
    write_table(results / STRANGE / "flows.parquet", {"bytes": np.array([1])})
    code, _, err = report(capsys, results)
    assert code == 0
    said = err.splitlines()
    assert "note: Queue at the hottest host port does not show rr: rr/ports.parquet does not exist" in said
    assert any(line.startswith("note: Completion of flows does not show rr: rr/flows.parquet cannot") for line in said)
    assert (
        f"note: Completion of flows does not show {STRANGE}: {STRANGE}/flows.parquet has no column delivered_bytes"
        in said
    )
    assert len(said) == 5
    plots = plots_of(results)
    assert plots["flows"].specification is None
    assert [len(traces(plots[name])) for name in ("queue", "utilisation", "receivers", "ports")] == [2, 2, 2, 1]
    text = made(capsys, results)
    assert "<li>rr: rr/ports.parquet does not exist</li>" in text
    assert 'id="plot-flows"' not in text


def test_nothing_was_sent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_results(tmp_path, [{**figures("rr"), **empty_figures(3)}])
    text = made(capsys, tmp_path)
    assert text.count("<li>rr: nothing was sent</li>") == len(PLOTS)
    assert "since nothing was sent" in text


def test_a_new_comparison_takes_the_old_page_away(results: Path, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,8192\n4096,0\n")
    (results / "report.html").write_text("old")
    prepare_folder(prepare(from_mapping({"demand": [{"file": str(tmp_path / "m.csv")}]})), results)
    assert not (results / "report.html").exists()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    browser = Chromium(find_chromium(), tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


# Of each text that is to be read, the box that its letters fill; of plots, also what plotly wrote.
OVERLAPS: Final = """
(() => {
  const own = "h1, h2, h3, p, caption, figcaption, summary, th, td, dt, dd, li, pre";
  const drawn = ".legendtext, .xtitle, .ytitle, .xtick text, .ytick text";
  const boxes = [...document.querySelectorAll(`${own}, ${drawn}`)].map(element => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return { element, box: range.getBoundingClientRect(), text: element.textContent.trim().slice(0, 60) };
  }).filter(({ box, text }) => text && box.width && box.height);
  const found = [];
  boxes.forEach((one, number) => boxes.slice(number + 1).forEach(other => {
    if (one.element.contains(other.element) || other.element.contains(one.element)) return;
    const wide = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const high = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    if (wide > 1 && high > 1) found.push(`${one.text} | ${other.text}`);
  }));
  return { count: boxes.length, found };
})()
"""
# What plotly wrote beyond its plot.
CLIPPED: Final = """
[...document.querySelectorAll(".plot")].flatMap(plot => [...plot.querySelectorAll("text")].filter(text => {
  const [own, all] = [text.getBoundingClientRect(), plot.getBoundingClientRect()];
  return own.width && (own.right > all.right + 1 || own.left < all.left - 1 || own.bottom > all.bottom + 1 || own.top < all.top - 1);
}).map(text => text.textContent))
"""
# Of each plot, how many of its traces have put ink on it.
DRAWN: Final = """
Object.fromEntries([...document.querySelectorAll(".plot")].map(plot => {
  const inked = trace => [...trace.querySelectorAll("path")].some(path => {
    const box = path.getBBox();
    return path.getAttribute("d") && (box.width > 0 || box.height > 0);
  });
  const kinds = ".scatterlayer .trace, .barlayer .trace";
  return [plot.id, [...plot.querySelectorAll(kinds)].filter(inked).length];
}))
"""


def opened(chromium: Chromium, page: Path, width: int) -> Tab:
    tab = chromium.open(page.as_uri(), width)
    tab.wait_for("document.documentElement.dataset.plotsDrawn")
    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    return tab


@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_the_report_opens_in_chromium(
    chromium: Chromium, capsys: pytest.CaptureFixture[str], results: Path, width: int
) -> None:
    assert report(capsys, results)[0] == 0
    page = results / "report.html"
    tab = opened(chromium, page, width)
    assert tab.complaints == []
    assert tab.requests == [page.as_uri()]  # and the name that is an image has loaded none
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= width
    overlaps = tab.evaluate(OVERLAPS)
    assert overlaps["count"] > 300
    assert overlaps["found"] == []
    assert tab.evaluate(CLIPPED) == []
    drawn = {f"plot-{name}": len(traces(plot)) for name, plot in plots_of(results).items()}
    assert len(drawn) == len(PLOTS)
    assert tab.evaluate(DRAWN) == drawn
    assert tab.evaluate("document.querySelectorAll('h2').length") == 6
    legend = tab.evaluate("document.querySelector('#plot-receivers').querySelectorAll('.legendtext')[1].textContent")
    assert legend == f"{STRANGE[:14]}… (2)"


def test_the_checks_in_chromium_find_faults(chromium: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!DOCTYPE html><title>bad</title><meta name=viewport content='width=device-width'><h1>one</h1>"
        "<h2 style='margin-top: -2em'>two</h2><p style='width: 2000px'>wide</p><div class=plot id=plot-x></div>"
        "<img src='http://192.0.2.1/x.png'><script>boom()</script>"
    )
    tab = chromium.open(page.as_uri(), 390)
    assert tab.evaluate(OVERLAPS)["found"] == ["one | two"]
    assert tab.evaluate("document.scrollingElement.scrollWidth") > 390
    assert tab.evaluate(DRAWN) == {"plot-x": 0}
    assert any("boom is not defined" in complaint for complaint in tab.complaints)
    assert "http://192.0.2.1/x.png" in tab.requests
