"""NICs that can pace: one backend a kind, all behind one interface and one rate table layout.

A backend is a module in this folder, named in BACKENDS, with the functions of Backend. It is imported when it
is opened, so that what one kind of NIC needs is asked of its users alone.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, Union, cast, overload

from controller.errors import CannotRunError, InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from controller.nic.ebpf import EbpfNic

__all__ = ["BACKENDS", "Backend", "Capabilities", "Nic", "Steps", "attach_nic", "backend_of", "open_nic"]

Steps: TypeAlias = Union[bytes, bytearray, memoryview, "NDArray[np.uint32]"]
"""One little-endian uint32 a slot, contiguous."""

BACKENDS: Final[dict[str, str]] = {
    "ebpf": "controller.nic.ebpf",
    "doca": "controller.nic.doca",
    "pinned": "controller.nic.pinned",
}
"""Kind of NIC to the module that implements Backend."""

_N = TypeVar("_N", bound="Nic")


@dataclass(frozen=True)
class Capabilities:
    """What a NIC can express, and what it costs to tell it."""

    steps: int
    """Steps of the line rate that a rate is rounded up to, at most 2^32."""
    slots: int
    """Flows that can be paced at once."""
    update_ns: int
    """From the call of write_rates until the rates are in force, median."""
    update_basis: Literal["measured", "published"]
    """Whether we measured that, or someone else did."""
    update_source: str
    """The benchmark that measures it, or the publication."""


class Nic(Protocol):
    """One open NIC, as open_nic returns it. Backends inherit, so that each is a context manager.

    How a packet finds its slot is the backend's own matter: an address (EbpfNic.write_peers), a queue pair.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Known before any rate is computed: rates are computed for so many steps."""

    def write_rates(self, steps: Steps) -> None:
        """Puts the rates of all slots in force at once, in one batch.

        ``steps``: one uint32 a slot, of ``capabilities.steps`` to the line rate; 0 is unpaced, and so are the
        slots after the last. Raises ValueError, with nothing changed, where there are more than slots.
        """

    def read_rates(self) -> tuple[int, bytes]:
        """(generation, rates), as they are in force: how often rates were written, and uint32 a slot."""

    def close(self) -> None:
        """Gives up what this process holds of the NIC, which goes on pacing. A second time does nothing."""

    def __enter__(self: _N) -> _N:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Backend(Protocol):
    """A module with these functions is a kind of NIC.

    A device is what the kind calls one: a network interface, a DOCA device. All raise InputError for one that
    does not exist, and CannotRunError, with nothing changed, for what cannot be done on this machine.
    """

    def load(self, device: str, line_rate: Fraction, **options: Any) -> Nic:
        """Makes a device pace, or takes over the one that does. ``line_rate`` in bit/s."""

    def attach(self, device: str) -> Nic:
        """One that was loaded before, by whomever; CannotRunError where none was."""

    def line_rate_bps(self, device: str) -> Fraction:
        """What the device says, in bit/s; InputError where it says nothing."""

    def unload(self, device: str) -> None:
        """Ends the pacing, and leaves the device as it was before."""


def backend_of(kind: str) -> Backend:
    """The module of a kind of NIC. Raises InputError for one that nobody knows, CannotRunError where it lacks a package."""
    if kind not in BACKENDS:
        raise InputError(f"NIC {kind!r} is not known: use one of {', '.join(sorted(BACKENDS))}")
    try:
        return cast(Backend, importlib.import_module(BACKENDS[kind]))
    except ImportError as error:
        raise CannotRunError(f"NIC {kind} needs the Python package {error.name}, which is not installed") from None


@overload
def open_nic(kind: Literal["ebpf"], device: str, line_rate_bps: Fraction | None = None) -> EbpfNic: ...
@overload
def open_nic(kind: str, device: str, line_rate_bps: Fraction | None = None, **options: Any) -> Nic: ...
def open_nic(kind: str, device: str, line_rate_bps: Fraction | None = None, **options: Any) -> Nic:
    """Makes a device pace, or takes over the one that does: ``open_nic("ebpf", "eth1")``.

    ``line_rate_bps``: by default what the device says. ``options`` are the backend's own. Raises InputError and
    CannotRunError as Backend says.
    """
    backend = backend_of(kind)
    return backend.load(device, backend.line_rate_bps(device) if line_rate_bps is None else line_rate_bps, **options)


@overload
def attach_nic(kind: Literal["ebpf"], device: str) -> EbpfNic: ...
@overload
def attach_nic(kind: str, device: str) -> Nic: ...
def attach_nic(kind: str, device: str) -> Nic:
    """A device that paces already; CannotRunError where it does not."""
    return backend_of(kind).attach(device)
