"""theory.png, theory.csv and the printed table: closed forms, fluid model and a measured run side by side."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.errors import CannotRunError
from testbed.report.plots import COLOURS, png
from testbed.theory import closed
from testbed.theory.fluid import Fluid, Profile
from testbed.theory.measured import BIN_SHARE, Apart, HotPort, Theory, apart

__all__ = ["Account"]

Floats = NDArray[np.float64]
_STEPS: Final = 400
"""Of the closed forms' curves."""
_BEYOND: Final = 1.15
"""The panels of k and lambda end so much after the senders are done."""
_NO_ZIPF: Final = 0.05
"""Of the volume: a demand that differs by more from Zipf with s = 1 is not what the closed forms speak of."""


@dataclass(frozen=True)
class Account:
    """All that is shown of one phase."""

    theory: Theory

    @cached_property
    def fluid(self) -> Fluid:
        """Round robin on this matrix."""
        return self.theory.fluid("rr")

    @cached_property
    def free(self) -> Profile:
        """The hot port where no link between switches holds anything up, as in the paper."""
        return self.fluid.receiver(self.theory.hot)

    @cached_property
    def held(self) -> Profile:
        """The hot port behind the links into its switch."""
        return self.theory.hot_profile("rr")

    @cached_property
    def run(self) -> dict[str, Any]:
        """The measured run of rr."""
        return dict(next(run for run in self.theory.runs if run["schedule"] == "rr"))

    @cached_property
    def port(self) -> HotPort:
        """What was measured at the hot port."""
        return self.theory.measured(self.run)

    @cached_property
    def apart(self) -> Apart:
        """Fluid and run."""
        return apart(self.held, self.port)

    @property
    def line(self) -> float:
        """Of the hot receiver, bytes/ns: what stands for 1 in the closed forms."""
        return float(self.theory.speeds[self.theory.hot])

    @cached_property
    def shares(self) -> Floats:
        """N: what a sender has for each receiver on average, by popularity (bytes)."""
        hosts = self.theory.demand.hosts
        return np.sort(self.theory.demand.wire_bytes.sum(axis=0) / (hosts - 1))[::-1]

    @property
    def sent_bytes(self) -> float:
        """T, with the share that a sender of the paper has for itself."""
        return float(self.shares.sum())

    @cached_property
    def from_zipf(self) -> float:
        """How much of the volume is elsewhere than Zipf with s = 1 has it."""
        hosts = self.theory.demand.hosts
        law = 1 / np.arange(1, hosts + 1) / closed.harmonic(hosts)
        return float(np.abs(self.shares / self.sent_bytes - law).sum() / 2)

    @cached_property
    def forms(self) -> dict[str, closed.Paper]:
        """The closed forms by what a legend calls them."""
        hosts, sent_ns = self.theory.demand.hosts, self.sent_bytes / self.line
        alpha = closed.harmonic(hosts)
        return {
            "paper, ln N": closed.Paper(hosts, sent_ns, float(np.log(hosts))),
            "paper, H_N": closed.Paper(hosts, sent_ns, alpha),
            "corrected": closed.Corrected(hosts, sent_ns, alpha),
        }

    @property
    def notes(self) -> list[str]:
        """What does not go together."""
        theory, notes = self.theory, []
        if self.from_zipf > _NO_ZIPF:
            notes.append(
                f"the closed forms are those of Zipf with s = 1, N and T of this demand, of which {100 * self.from_zipf:.0f} % lies "
                "elsewhere: only the fluid model is of this matrix"
            )
        if len(set(theory.speeds.tolist())) > 1:
            notes.append(
                "the hosts' ports differ in speed: the closed forms take all to be as fast as the hot receiver's"
            )
        if self.run["queue_bytes"]:
            notes.append(
                f"queues of {self.run['queue_bytes']} B lose what does not fit, of which the model knows nothing: compare with "
                "--queue-bytes 0 --loss-recovery none"
            )
        return notes

    # ---- table ----

    def table(self) -> str:
        """For people."""
        theory, fluid, run = self.theory, self.fluid, self.run
        hosts, forms = theory.demand.hosts, list(self.forms.values())
        in_us, in_mb = 1e-3, 1e-6
        total_measured = run["total_queue_max_bytes"] * in_mb
        several = len(theory.scenario.demands) > 1
        bucket = float(self.port.edges_ns[1])
        stranded = closed.stranded_bytes(hosts, self.sent_bytes) if hosts > 2 else None
        cct_ns = run["phase_cct_ns"][theory.phase] if run.get("phase_cct_ns") else run["cct_ns"]
        rows: list[tuple[str, list[float | None]]] = [
            (
                "first flow sent [us]",
                [*(form.first_end_ns * in_us for form in forms), float(fluid.sent_ns[fluid.sent_ns > 0].min()) * in_us]
                + [None] * 2,
            ),
            ("all sent [us]", [*(form.last_ns * in_us for form in forms), fluid.last_sent_ns * in_us, None, None]),
            (
                "arrivals [line rates]",
                [
                    *(float(hosts) for _ in forms),
                    float(self.free.arrival.max()) / self.line,
                    float(self.held.arrival.max()) / self.line,
                    float(self.port.arrived_bytes.max()) / bucket / self.line,
                ],
            ),
            (
                "hot queue [MB]",
                [
                    *(float(form.queue(np.array([form.last_ns]))[0]) * self.line * in_mb for form in forms),
                    self.free.peak_bytes * in_mb,
                    self.held.peak_bytes * in_mb,
                    float(self.port.queue_bytes.max()) * in_mb,
                ],
            ),
            (
                "all queues, most [MB]",
                [
                    stranded * in_mb if stranded is not None else None,
                    closed.stranded_sum_bytes(hosts, self.sent_bytes) * in_mb,
                    None,
                    fluid.most_queued_bytes * in_mb,
                    None,
                    None if several else total_measured,
                ],
            ),
            (
                "CCT [us]",
                [
                    None,
                    None,
                    None,
                    fluid.end_ns * in_us + theory.last_link_ns * in_us,
                    None,
                    cct_ns * in_us if cct_ns is not None else None,
                ],
            ),
        ]
        heads = [*self.forms, "fluid", "behind leaf", run["run"]]
        lines = [
            f"{hosts} hosts, T = {self.sent_bytes * in_mb:.3f} MB or {self.sent_bytes / self.line * in_us:.2f} us a sender, "
            f"ln N = {np.log(hosts):.3f}, H_N = {closed.harmonic(hosts):.3f}, hottest receiver {theory.hot_host}",
            "",
            f"{'':22}" + "".join(f"{head:>13}" for head in heads),
        ]
        for label, values in rows:
            lines.append(f"{label:22}" + "".join(f"{'-' if v is None else f'{v:.2f}':>13}" for v in values))
        lines += [
            "",
            f"fluid behind the leaf and {run['run']}, in {100 * BIN_SHARE:g} % of the run: arrivals at most "
            f"{100 * self.apart.arrival:.1f} % of their peak apart, queues {100 * self.apart.queue:.1f} %",
        ]
        return "\n".join(lines) + "\n"

    # ---- files ----

    def csv(self) -> str:
        """One line an interval of the run's own table."""
        edges = self.port.edges_ns
        begin, length = edges[:-1], np.diff(edges)
        columns: dict[str, Floats] = {"begin_ns": begin, "interval_ns": length}
        for name, form in self.forms.items():
            columns[f"k {name}"] = form.active(begin)
        for name, form in self.forms.items():
            columns[f"arrival {name} [line rates]"] = form.arrival(begin)
        for name, profile in (("fluid", self.free), ("fluid behind leaf", self.held)):
            columns[f"arrival {name} [line rates]"] = np.diff(profile.arrived_at(edges)) / length / self.line
        columns["arrival measured [line rates]"] = self.port.arrived_bytes / length / self.line
        for name, form in self.forms.items():
            columns[f"queue {name} [B]"] = form.queue(begin) * self.line
        for name, profile in (("fluid", self.free), ("fluid behind leaf", self.held)):
            columns[f"queue {name} [B]"] = profile.queue_at(begin)
        columns["queue measured [B]"] = self.port.queue_bytes[:-1]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([f"{value:.6g}" for value in row] for row in zip(*columns.values(), strict=True))
        return text.getvalue()

    def png(self) -> bytes:
        """k, lambda and the queue over time. Raises CannotRunError without matplotlib."""
        try:
            import matplotlib
        except ImportError:
            raise CannotRunError("matplotlib is missing: run make setup") from None
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        theory = self.theory
        figure, panels = plt.subplots(1, 3, figsize=(13.5, 4.4), dpi=120, layout="constrained")
        figure.suptitle(
            f"Round robin at {theory.hot_host}, to which most is sent: {theory.demand.hosts} hosts, T = "
            f"{self.sent_bytes / self.line / 1000:.1f} us",
            fontsize=10,
            x=0.01,
            ha="left",
        )
        for axes, title, label in zip(
            panels,
            ("k: flows that a sender has not finished", "Arrivals at the hot port", "Queue at the hot port"),
            ("flows", "line rates", "MB"),
            strict=True,
        ):
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel("time since the common start [us]")
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        edges = self.port.edges_ns
        sent_us = self.fluid.last_sent_ns / 1000
        times = np.linspace(0, _BEYOND * self.fluid.last_sent_ns, _STEPS)
        measured = self.port.arrived_bytes / np.diff(edges) / self.line
        senders = float((theory.demand.wire_bytes[:, theory.hot] > 0).sum())
        looks = {
            "paper, ln N": {"linestyle": "--", "color": COLOURS[2]},
            "paper, H_N": {"linestyle": ":", "color": COLOURS[2]},
            "corrected": {"linestyle": "-.", "color": COLOURS[3]},
        }
        free, held = {"linestyle": "--", "color": COLOURS[1]}, {"linestyle": "-", "color": COLOURS[1]}
        own = {"linestyle": "-", "color": COLOURS[0], "linewidth": 1.0}
        for name, form in self.forms.items():
            panels[0].plot(times / 1000, form.active(times), **looks[name], label=name)
            panels[1].plot(times / 1000, np.where(form.arrival(times) > 0, form.arrival(times), np.nan), **looks[name])
        active = np.array([(self.fluid.sent_ns > time).sum(axis=1).mean() for time in times])
        panels[0].plot(times / 1000, np.where(active > 0, active, np.nan), **free, label="fluid, mean of the senders")
        early = edges[:-1] < sent_us * 1000
        with np.errstate(divide="ignore"):
            panels[0].plot(
                edges[:-1][early] / 1000,
                (senders / measured)[early],
                **own,
                drawstyle="steps-post",
                label="senders / measured arrivals",
            )
        panels[1].plot(times / 1000, np.maximum(self.free.rate_at(times) / self.line, 1e-3), **free, label="fluid")
        panels[1].plot(
            times / 1000,
            np.maximum(self.held.rate_at(times) / self.line, 1e-3),
            **held,
            label="fluid, behind the links into the leaf",
        )
        panels[1].plot(
            edges[:-1] / 1000,
            np.maximum(measured, 1e-3),
            **own,
            drawstyle="steps-post",
            label=f"{self.run['run']}, measured",
        )
        for profile, look, name in (
            (self.free, free, "fluid"),
            (self.held, held, "fluid, behind the links into the leaf"),
        ):
            panels[2].plot(profile.times_ns / 1000, profile.queue_bytes / 1e6, **look, label=name)
        long = np.linspace(0, float(edges[-1]), _STEPS)
        panels[2].plot(
            long / 1000, self.forms["corrected"].queue(long) * self.line / 1e6, **looks["corrected"], label="corrected"
        )
        panels[2].plot(edges / 1000, self.port.queue_bytes / 1e6, **own, label=f"{self.run['run']}, measured")
        for axes in panels[:2]:
            axes.set_yscale("log")
            axes.set_xlim(0, float(times[-1]) / 1000)
            axes.set_ylim(0.5, 2 * theory.demand.hosts)
        panels[2].set_ylim(bottom=0)
        for axes in panels:
            axes.legend(frameon=False, fontsize=8)
        return png(figure)
