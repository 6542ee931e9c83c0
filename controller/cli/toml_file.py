"""Small TOML files beside a command: peers, bindings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from controller.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_toml"]


def read_toml(path: Path, example: str) -> dict[str, Any]:
    """What stands in the file. Raises InputError; ``example`` says what it should hold."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} is not TOML ({error}): give {example}") from None
