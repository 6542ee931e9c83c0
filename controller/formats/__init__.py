"""Importers of demand matrices: one file a format. A format is told by the file's name and first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from controller.errors import InputError
from controller.formats import csv_matrix, npy_matrix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["read_matrix"]


def read_matrix(path: Path) -> NDArray[np.generic]:
    """The numbers of a matrix file, integer or float as they stand there.

    Raises InputError for what cannot be read.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: name the matrix file in it")
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except PermissionError:
        raise InputError(f"{path} may not be read: check its permissions") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a zero byte in the name
        raise InputError(f"{str(path)!r} cannot be read: {error}") from None
    if content.startswith(npy_matrix.MAGIC):
        return npy_matrix.parse(path, content)
    return csv_matrix.parse(path, content)
