"""What a cluster would run: a demand matrix in, rates out, NICs programmed. Knows nothing of Mininet.

The names below are the interface (docs/controller.md); what is not among them may change. They are imported when
they are used, so that ``incastfree doctor`` can say that NumPy is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from controller.demand import Bottleneck, Demand, DemandSequence, load_demand, load_demands
    from controller.errors import CannotRunError, InputError
    from controller.formats import Chosen, Reading
    from controller.loads import PortLoads, port_loads
    from controller.nic import Capabilities, Nic, attach_nic, open_nic
    from controller.rates import compute_rates, rank_rates

__all__ = [
    "Bottleneck",
    "CannotRunError",
    "Capabilities",
    "Chosen",
    "Demand",
    "DemandSequence",
    "InputError",
    "Nic",
    "PortLoads",
    "Reading",
    "attach_nic",
    "compute_rates",
    "load_demand",
    "load_demands",
    "open_nic",
    "port_loads",
    "rank_rates",
]

__version__ = "0.1.0"

_PLACES: Final = {
    "controller.demand": ("Bottleneck", "Demand", "DemandSequence", "load_demand", "load_demands"),
    "controller.errors": ("CannotRunError", "InputError"),
    "controller.formats": ("Chosen", "Reading"),
    "controller.nic": ("Capabilities", "Nic", "attach_nic", "open_nic"),
    "controller.loads": ("PortLoads", "port_loads"),
    "controller.rates": ("compute_rates", "rank_rates"),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            value = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
