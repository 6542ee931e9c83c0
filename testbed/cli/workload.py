"""``incastfree workload``: makes demand matrices."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.cli.options import whole_number
from controller.demand import MTU_BYTES
from controller.errors import CannotRunError, InputError
from testbed.workload.dispatch import Dispatch, counts_of, dispatch_tokens, without_servers, zipf_popularity
from testbed.workload.zipf import zipf

HELP: Final = "make a demand matrix"

_MOST_DRAWS: Final = 2**33
_MOST_TOKENS: Final = 2**24
_MOST_BYTES: Final = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One kind after the other."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    options = kinds.add_parser("zipf", help="every sender prefers the same receivers, by a Zipf law")
    options.add_argument("--hosts", type=whole_number, required=True)
    options.add_argument("--s", type=float, required=True, help="skew; 0 is uniform")
    options.add_argument(
        "--bytes",
        type=whole_number,
        required=True,
        help="wire bytes of a sender, its share to itself included, such as 30e6; that share stays local",
    )
    options.add_argument("--mtu-bytes", type=whole_number, default=MTU_BYTES)
    options.add_argument("--seed", type=whole_number, default=0, help="of the order of popularity")
    options.add_argument("--out", type=Path, required=True, metavar="FILE", help="CSV, in wire bytes")

    options = kinds.add_parser("deepseek", help="dispatch of a layer in the shape of DeepSeek-V3, and its combine")
    options.add_argument("--hosts", type=whole_number, required=True, help="GPUs")
    options.add_argument("--tokens", type=whole_number, default=4096, help="of each GPU; default 4096")
    options.add_argument("--experts", type=whole_number, default=256, help="default 256")
    options.add_argument("--top-k", type=whole_number, default=8, help="experts of a token; default 8")
    options.add_argument("--s", type=float, default=0.5, help="skew of the experts' popularity; default 0.5")
    options.add_argument(
        "--counts", type=Path, metavar="FILE", help="popularity from a JSON of tokens by expert instead"
    )
    options.add_argument("--counts-of", default="", metavar="NAME", help="MODEL/DOMAIN/LAYER in that file")
    options.add_argument("--hidden", type=whole_number, default=7168, help="hidden size; default 7168")
    options.add_argument("--dispatch-bytes", type=whole_number, default=1, help="of an element; default 1, FP8")
    options.add_argument("--combine-bytes", type=whole_number, default=2, help="of an element; default 2, BF16")
    options.add_argument("--gpus-per-server", type=whole_number, default=8, help="traffic inside stays out; default 8")
    options.add_argument(
        "--per-expert",
        action="store_true",
        help="a token whose experts share a GPU goes there once for each; default: once, as DeepEP sends it",
    )
    options.add_argument("--seed", type=whole_number, default=0, help="of popularity and choices")
    options.add_argument("--out", type=Path, required=True, metavar="FILE", help="the dispatch: CSV, in payload bytes")
    options.add_argument("--combine-out", type=Path, metavar="FILE", help="the combine, likewise")


def run(arguments: argparse.Namespace) -> int:
    """Writes the matrix and says how to use it."""
    return _zipf(arguments) if arguments.kind == "zipf" else _deepseek(arguments)


def _zipf(arguments: argparse.Namespace) -> int:
    if not 128 <= arguments.mtu_bytes <= 9216:
        raise InputError(f"--mtu-bytes {arguments.mtu_bytes}: give 128 to 9216")
    _check_name("--out", arguments.out)
    if arguments.bytes < arguments.mtu_bytes:
        raise InputError(f"--bytes {arguments.bytes}: give at least one packet of {arguments.mtu_bytes} bytes")
    demand = zipf(arguments.hosts, arguments.s, arguments.bytes, arguments.mtu_bytes, arguments.seed)
    _write(arguments.out, demand)
    print(f"{arguments.out}: {arguments.hosts} hosts, {int(demand.sum())} wire bytes; use it with --unit wire-bytes")
    return 0


def _deepseek(arguments: argparse.Namespace) -> int:
    _check_name("--out", arguments.out)
    if arguments.combine_out:
        _check_name("--combine-out", arguments.combine_out)
        if arguments.combine_out.resolve() == arguments.out.resolve():
            raise InputError(f"--combine-out {arguments.combine_out} is the file of --out: give another name")
    for option, value, least, most in (
        ("--hosts", arguments.hosts, 2, 1000),
        ("--tokens", arguments.tokens, 1, _MOST_TOKENS),
        ("--experts", arguments.experts, 2, 2**16),
        ("--hidden", arguments.hidden, 1, _MOST_BYTES),
        ("--dispatch-bytes", arguments.dispatch_bytes, 1, 16),
        ("--combine-bytes", arguments.combine_bytes, 1, 16),
        ("--gpus-per-server", arguments.gpus_per_server, 1, 64),
        ("--seed", arguments.seed, 0, 2**32 - 1),
        ("--s", arguments.s, 0, 10),
    ):
        if not least <= value <= most:
            raise InputError(f"{option} {value:g}: give {least} to {most}")
    if arguments.counts:
        popularity = counts_of(arguments.counts, arguments.counts_of)
    elif arguments.counts_of:
        raise InputError(f"--counts-of {arguments.counts_of}: give the file with --counts as well")
    else:
        popularity = zipf_popularity(arguments.experts, arguments.s, arguments.seed)
    if arguments.tokens * len(popularity) * arguments.hosts > _MOST_DRAWS:
        raise InputError(
            f"--tokens {arguments.tokens}: {arguments.hosts} GPUs with {len(popularity)} experts would take an hour to draw; "
            f"give at most {_MOST_DRAWS // (len(popularity) * arguments.hosts)}"
        )
    given = Dispatch(
        hosts=arguments.hosts,
        tokens_per_host=arguments.tokens,
        top_k=arguments.top_k,
        once_per_host=not arguments.per_expert,
        seed=arguments.seed,
    )
    tokens = without_servers(dispatch_tokens(popularity, given), arguments.gpus_per_server)
    dispatch = tokens * (arguments.hidden * arguments.dispatch_bytes)
    _write(arguments.out, dispatch)
    print(f"{arguments.out}: {arguments.hosts} hosts, {int(dispatch.sum())} payload bytes; use it with --unit bytes")
    if arguments.combine_out:
        combine = tokens.T * (arguments.hidden * arguments.combine_bytes)
        _write(arguments.combine_out, combine)
        print(f"{arguments.combine_out}: the way back, {int(combine.sum())} payload bytes")
    return 0


def _check_name(option: str, path: Path) -> None:
    if path.suffix != ".csv":
        raise InputError(f"{option} {path}: the matrix is written as CSV: give a name that ends in .csv")


def _write(path: Path, demand: NDArray[np.int64]) -> None:
    try:
        with path.open("w", encoding="ascii") as file:
            np.savetxt(file, demand, fmt="%d", delimiter=",")
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}; choose another name") from None
