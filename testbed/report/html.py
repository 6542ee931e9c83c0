"""One page of a comparison that needs nothing but itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Any, Final

from testbed.experiment import DEMAND_KEYS, KEYS, Key
from testbed.report.figures import Plot
from testbed.report.saved import Saved
from testbed.report.table import ROWS

__all__ = ["page"]

_NOT_RECORDED: Final = "not recorded"
_VERSIONS: Final = (
    ("incastfree", "version", ""),
    ("Python", "python_version", "that ran the testbed"),
    ("Linux", "kernel_version", "that carried the packets"),
    ("its build", "kernel_key", "hash of source, configuration and edits; none in real time"),
    ("BMv2", "bmv2_version", "none where the switches are the kernel's"),
)
_ALWAYS: Final = (
    "The CCT says little alone: with unlimited queues it does not tell round robin and pacing apart, since the hot port is busy "
    "in both; the queues do. With finite ones the buffer, trimming and the loss recovery decide how large the difference is. "
    "Read no figure without the others.",
    "The lower bound knows of the hosts' links alone: where a link between switches needs longer for its share, a note says so.",
    "It is one seed. How much a figure varies with it, other seeds say.",
    "Hosts have no CPU cost: in virtual time the clock stands still while a program computes. There is no PFC, and a link that "
    "fails is not routed around. docs/model.md says in full what is modelled.",
)

_PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
<p>$summary</p>
</header>
<main>
<section aria-labelledby="comparison">
<h2 id="comparison">Comparison</h2>
$comparison
<details>
<summary>What the rows say</summary>
<dl>
$meanings
</dl>
</details>
</section>
<section aria-labelledby="plots">
<h2 id="plots">Plots</h2>
<p>Point at a line for its values; drag with a mouse to zoom in, click twice to zoom out; click a name to hide its line.</p>
<noscript><p>The plots need JavaScript, which is off.</p></noscript>
$plots
</section>
<section aria-labelledby="limits">
<h2 id="limits">What these figures do not say</h2>
<h3>Notes of these runs</h3>
$notes
<h3>Of all runs</h3>
$limits
</section>
<section aria-labelledby="experiment">
<h2 id="experiment">Experiment</h2>
$experiment
</section>
<section aria-labelledby="versions">
<h2 id="versions">Versions</h2>
$versions
</section>
<section aria-labelledby="repeat">
<h2 id="repeat">How to repeat it</h2>
$repeat
</section>
</main>
<script>$library</script>
$specifications
<script>$draw</script>
</body>
</html>
""")

_STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 1080px; padding: 12px 16px 40px; background: #fff; color: #1b1b1b;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid #00629f; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
.figures th, .figures td { white-space: nowrap; text-align: right; overflow-wrap: normal; }
.figures th:first-child { text-align: left; }
.keys { min-width: 560px; }
.keys th, .keys td:nth-child(3) { overflow-wrap: normal; white-space: nowrap; }
.scroll + .scroll { margin-top: 1.2rem; }
summary { margin: .8rem 0; cursor: pointer; font-weight: 600; }
dt { font-weight: 600; margin-top: .5rem; }
dd { margin: 0 0 0 1.2rem; }
figure { margin: 0 0 1.6rem; }
figcaption { margin-top: .5rem; }
.plot { width: 100%; }
pre { overflow-x: auto; padding: .6rem; background: #f4f4f4; overflow-wrap: normal; }
"""

_DRAW: Final = """
Promise.all([...document.querySelectorAll("script[data-plot]")].map(script => {
  const plot = JSON.parse(script.textContent);
  // A finger on a plot scrolls the page.
  plot.layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
  return Plotly.newPlot(script.dataset.plot, plot.data, plot.layout, { responsive: true, displayModeBar: false });
})).then(plots => { document.documentElement.dataset.plotsDrawn = plots.length; });
"""


def page(saved: Saved, plots: Sequence[Plot], library: str) -> str:
    """The whole page. ``library``: plotly's JavaScript. All text that comes from files is escaped."""
    first = saved.runs[0]
    names = ", ".join(run["run"] for run in saved.runs)
    return _PAGE.substitute(
        title=escape(f"incastfree: {names} on {first['hosts']} hosts"),
        style=_STYLE,
        summary=escape(_summary(first)),
        comparison=_comparison(saved),
        meanings="\n".join(_meanings()),
        plots="\n".join(_plot(plot) for plot in plots),
        notes=_list(_notes(saved)),
        limits=_list(_ALWAYS),
        experiment=_experiment(saved),
        versions=_versions(saved),
        repeat=_repeat(saved),
        library=library,
        specifications="\n".join(
            f'<script type="application/json" data-plot="plot-{plot.name}">{plot.specification}</script>'
            for plot in plots
            if plot.specification
        ),
        draw=_DRAW,
    )


def _summary(run: dict[str, Any]) -> str:
    queues = f"of {run['queue_bytes']} B" if run["queue_bytes"] else "unlimited"
    bound = f"set by {run['bottleneck']}" if run["bottleneck"] else "since nothing was sent"
    return (
        f"{run['hosts']} hosts, {run['link_gbps']:g} Gb/s, {run['expected_bytes'] / 1e6:.1f} MB on the wire, load balancing "
        f"{run['lb']}, queues {queues}, loss recovery {run['loss_recovery']}, seed {run['seed']}. "
        f"Lower bound {run['lower_bound_ns'] / 1000:.3f} us, {bound}."
    )


def _scrolled(table: str, label: str) -> str:
    """A table wider than the page scrolls in a box of its own, by the keyboard too."""
    return f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">\n{table}\n</div>'


def _comparison(saved: Saved) -> str:
    head = "".join(f'<th scope="col">{escape(run["run"])}</th>' for run in saved.runs)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row.label)}</th>'
        + "".join(f"<td>{escape(row.cell(run, run['mtu_bytes']))}</td>" for run in saved.runs)
        + "</tr>"
        for row in ROWS
    )
    return _scrolled(
        '<table class="figures">\n<caption>The figures of each run; "-": there is none</caption>\n'
        f'<thead><tr><th scope="col">figure</th>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>',
        "Comparison",
    )


def _meanings() -> Iterable[str]:
    """Rows of one meaning together."""
    labels: dict[str, list[str]] = {}
    for row in ROWS:
        labels.setdefault(row.meaning, []).append(row.label)
    for meaning, shared in labels.items():
        yield f"<dt>{escape(', '.join(shared))}</dt>\n<dd>{escape(meaning)}</dd>"


def _plot(plot: Plot) -> str:
    parts = [f"<figure>\n<h3>{escape(plot.title)}</h3>"]
    if plot.specification:
        parts.append(
            f'<div class="plot" id="plot-{plot.name}" role="img" aria-label="{escape(plot.title)}" '
            f'style="height: {plot.pixels}px"></div>'
        )
    parts.append(f"<figcaption>{escape(plot.caption)}</figcaption>")
    if plot.missing:
        parts.append("<p>Not shown:</p>")
        parts.append(_list(plot.missing))
    return "\n".join([*parts, "</figure>"])


def _list(items: Sequence[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"


def _notes(saved: Saved) -> list[str]:
    """What was assumed or refused to be known when it ran, and what is special in these results."""
    notes: list[str] = []
    if any("notes" not in run for run in saved.runs):
        notes.append("The version that ran it kept no notes of its inputs.")
    notes += dict.fromkeys(str(note) for run in saved.runs for note in run.get("notes", ()))
    for run in saved.runs:
        missing = run["expected_bytes"] - run["delivered_bytes"]
        if missing:
            notes.append(
                f"{run['run']}: {missing} bytes were not delivered, so it has no CCT; compare none of its times with those of "
                "other runs."
            )
        if run["expected_bytes"] and run["bottleneck_busy"] is None:
            notes.append(
                f'{run["run"]}: the lower bound is too short to say how busy the bottleneck was; "-" does not mean 0.'
            )
    first = saved.runs[0]
    if first["stage"] == "host":
        late = ", ".join(f"{run['run']} {run.get('late_packets', _NOT_RECORDED)}" for run in saved.runs)
        notes.append(
            "It ran in real time: computing took time, senders heard of ACKs late, and another run may differ. Packets that "
            f"were late, and count as having come when they were due: {late}."
        )
    if first.get("fabric") == "bmv2":
        notes.append(
            "The switches were BMv2's: two runs are not the same to the nanosecond, and ACKs let no queue grow, so that a paced "
            "queue is some packets shallower than it should be."
        )
    if not first["queue_bytes"]:
        notes.append("Queues were unlimited: compare the queues, not the CCT.")
    if saved.planned is not None and saved.planned > len(saved.runs):
        notes.append(
            f"experiment.toml names {saved.planned} runs, of which {len(saved.runs)} have results: the others failed, or were "
            "interrupted."
        )
    return notes or ["None."]


def _shown(value: object) -> str:
    """As experiment.toml would have it, or nearly."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_shown(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value) or "none"
    return str(value)


def _value(saved: Saved, key: str) -> str:
    """One where all runs have the same, else that of each."""
    shown = [_shown(run[key]) if key in run else _NOT_RECORDED for run in saved.runs]
    if len(set(shown)) == 1:
        return shown[0]
    return "; ".join(f"{run['run']}: {value}" for run, value in zip(saved.runs, shown, strict=True))


def _key_row(name: str, value: str, unit: str, text: str) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in (value, unit, text))
    return f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'


def _key_table(rows: Sequence[str], caption: str) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("key", "as run", "unit", "meaning"))
    return _scrolled(
        f'<table class="keys">\n<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table>",
        caption,
    )


def _experiment(saved: Saved) -> str:
    rows = [_key_row(key.name, _value(saved, key.name), key.unit, key.help) for key in KEYS]
    failures = "; ".join(_shown(failure) for failure in saved.runs[0].get("link_failure", ()))
    background = "; ".join(_shown(flow) for flow in saved.runs[0].get("background", ()))
    rows += [
        _key_row("link_failure", failures or "none", "", "links that lose what is on them for a while"),
        _key_row(
            "background",
            background or "none",
            "",
            "constant flows beside the demand; in marks, trims and queues as well",
        ),
        _key_row("rtt_ns", _value(saved, "rtt_ns"), "ns", "round trip without queues, which follows from the network"),
        _key_row("rto_ns", _value(saved, "rto_ns"), "ns", "timeout, which follows from it and the queues"),
        _key_row("cc_sha256", _value(saved, "cc_sha256"), "", "of the Python file of a control of one's own"),
    ]
    demand = [
        _key_row(name, _value(saved, name), unit, text)
        for name, unit, text in (
            ("phase_names", "", _help(DEMAND_KEYS, "name")),
            ("demand", "", _help(DEMAND_KEYS, "file")),
            ("demand_sha256", "", "of the matrix file when it ran"),
            ("unit", "", _help(DEMAND_KEYS, "unit")),
            ("token_bytes", "B", _help(DEMAND_KEYS, "token_bytes")),
        )
    ]
    return "\n".join((_key_table(demand, "Demand, a value a phase"), _key_table(rows, "All keys, as they were run")))


def _help(keys: Iterable[Key], name: str) -> str:
    return next(key.help for key in keys if key.name == name)


def _versions(saved: Saved) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_value(saved, key))}</td><td>{escape(text)}</td></tr>'
        for name, key, text in _VERSIONS
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("what", "version", "meaning"))
    return _scrolled(
        f"<table>\n<caption>What ran it</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>",
        "Versions",
    )


def _repeat(saved: Saved) -> str:
    if saved.experiment is None:
        return "<p>There is no experiment.toml beside these results, so no command repeats them.</p>"
    command = f"incastfree run {shlex.quote(str(saved.folder / 'experiment.toml'))} --out results/again"
    return (
        f"<pre><code>{escape(command)}</code></pre>\n"
        "<p>In virtual time the same experiment gives the same bytes in the same installation, but for wall times. The matrix must "
        "be where the file says, and the one whose SHA-256 stands above. experiment.toml:</p>\n"
        f'<pre tabindex="0"><code>{escape(saved.experiment)}</code></pre>'
    )
