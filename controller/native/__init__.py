"""What the controller has in C beside NumPy: the same numbers, sooner.

``pip`` builds it where a compiler is, and the controller does without where none is. ``incastfree doctor`` says which.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["MISSING", "part"]


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("controller.native._native"), ""
    except ModuleNotFoundError:
        return None, "not built"
    except ImportError as error:  # built for another machine or library
        return None, str(error)


part, _reason = _load()
"""The C part (_native.pyi describes it), or None."""
MISSING: Final = _reason
"""Why there is none."""
