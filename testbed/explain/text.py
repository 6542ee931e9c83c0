"""An explanation as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from testbed.explain.account import GROUPS, Part, PhaseAccount
from testbed.explain.rerun import Explanation
from testbed.explain.trace import Share

__all__ = ["as_json", "as_table"]

_SHOWN: Final = 3
"""Flows of a part that the table names."""
_WHAT: Final = 60


def _name(share: Share, hosts: Sequence[str], phase: PhaseAccount) -> str:
    flow = share.flow
    if flow == phase.packet.flow:
        return "its own flow"
    return f"{hosts[flow.source]}->{hosts[flow.destination]}{' (background)' if flow.background else ''}"


def _us(kernel_ns: int, found: Explanation) -> float:
    return float(kernel_ns / found.scenario.dilation) / 1000


def _shared(part: Part, found: Explanation, phase: PhaseAccount) -> list[str]:
    """Lines on the flows of a part."""
    if not part.shared:
        return []
    hosts = found.scenario.wiring.hosts
    texts = [
        f"{_name(share, hosts, phase)} {_us(share.kernel_ns, found):.3f} us ({share.packets} p.)"
        for share in part.shared[:_SHOWN]
    ]
    left = len(part.shared) - len(texts)
    control = part.kernel_ns - sum(share.kernel_ns for share in part.shared)
    texts += [f"{left} more flows"] if left else []
    texts += [f"control {_us(control, found):.3f} us"] if control else []
    return [f"{'':18}behind {', '.join(texts)}"]


def as_table(found: Explanation) -> str:
    """Phase by phase, then the sums of all."""
    hosts = found.scenario.wiring.hosts
    total = found.kernel_ns
    digits = 3 + max(0, len(str(int(found.scenario.dilation))) - 1)
    lines = []
    for phase in found.phases:
        packet = phase.packet
        times = "once" if phase.sendings == 1 else f"{phase.sendings} times"
        of_phase = f"phase {phase.name}: " if len(found.phases) > 1 else ""
        lines.append(
            f"{of_phase}{_us(phase.kernel_ns, found):.{digits}f} us. The last byte: {hosts[packet.source]} to "
            f"{hosts[packet.destination]}, packet {packet.psn + 1} of {phase.packets} ({phase.wire_bytes} B), sent {times}"
        )
        if phase.others_at_once:
            lines.append(f"({phase.others_at_once} other packets arrived in the same nanosecond)")
        lines += ["", f"{'where':18}{'what':{_WHAT}}{'us':>14}{'%':>8}"]
        for part in phase.parts:
            share = 100 * part.kernel_ns / phase.kernel_ns
            lines.append(f"{part.where:18}{part.what:{_WHAT}}{_us(part.kernel_ns, found):>14.{digits}f}{share:>8.2f}")
            lines += _shared(part, found, phase)
        lines.append("")
    lines.append("together")
    for group, title in GROUPS.items():
        own = sum(part.kernel_ns for phase in found.phases for part in phase.parts if part.group == group)
        lines.append(f"{'':18}{title:{_WHAT}}{_us(own, found):>14.{digits}f}{100 * own / total:>8.2f}")
    lines.append(f"{'':18}{'CCT of ' + str(found.run['run']):{_WHAT}}{_us(total, found):>14.{digits}f}{100:>8.2f}")
    notes = list(dict.fromkeys(note for phase in found.phases for note in phase.notes))
    lines += ["", *(f"not told apart: {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def as_json(found: Explanation) -> dict[str, Any]:
    """Kernel times are exact; ``ns`` are fabric time. ``psn`` counts from 0."""
    hosts, dilation = found.scenario.wiring.hosts, found.scenario.dilation

    def times(kernel_ns: int) -> dict[str, Any]:
        return {"kernel_ns": kernel_ns, "ns": float(kernel_ns / dilation)}

    def share(each: Share) -> dict[str, Any]:
        return {
            "source": hosts[each.flow.source],
            "destination": hosts[each.flow.destination],
            "background": each.flow.background,
            "packets": each.packets,
            **times(each.kernel_ns),
        }

    return {
        "run": found.run["run"],
        "dilation": float(dilation),
        **times(found.kernel_ns),
        "phases": [
            {
                "phase": phase.name,
                **times(phase.kernel_ns),
                "source": hosts[phase.packet.source],
                "destination": hosts[phase.packet.destination],
                "psn": phase.packet.psn,
                "packets": phase.packets,
                "wire_bytes": phase.wire_bytes,
                "sendings": phase.sendings,
                "others_at_once": phase.others_at_once,
                "parts": [
                    {
                        "group": part.group,
                        "where": part.where,
                        "what": part.what,
                        **times(part.kernel_ns),
                        "shared": [share(each) for each in part.shared],
                    }
                    for part in phase.parts
                ],
                "not_told_apart": list(phase.notes),
            }
            for phase in found.phases
        ],
    }
