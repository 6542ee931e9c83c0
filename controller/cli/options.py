"""Options that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from controller.demand import DIRECTIONS, MTU_BYTES, UNITS, DemandSequence, load_demands
from controller.errors import InputError
from controller.formats import AUTO, FORMATS, TOKEN_COPIES, Chosen, Reading

__all__ = ["add_demand_options", "check_demand_options", "demands_of", "whole_number"]


def add_demand_options(parser: argparse.ArgumentParser) -> None:
    """FILE and what says how it is read. The names are those of an experiment's demand."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="matrix (row = sender) or trace: a file, a folder of ranks' files, a pattern",
    )
    parser.add_argument(
        "--unit",
        default=AUTO,
        choices=(AUTO, *UNITS),
        help="what an entry counts (default: what the format says, else payload bytes)",
    )
    parser.add_argument("--token-bytes", type=whole_number, default=0, help="payload of one token, with unit tokens")
    parser.add_argument("--mtu-bytes", type=whole_number, default=MTU_BYTES, help="packet on the wire (default: 4096)")
    parser.add_argument("--gpus-per-server", type=whole_number, default=1, help="hosts in a server (default: 1)")
    trace = parser.add_argument_group("traces of frameworks (docs/formats.md)")
    trace.add_argument("--format", default=AUTO, choices=FORMATS, help="default: by the file's content")
    trace.add_argument(
        "--steps", default="", metavar="A:B", help="steps A to B - 1, or a list such as 3,8:10 (default: all)"
    )
    trace.add_argument("--layers", default="", metavar="A:B", help="layers, likewise")
    trace.add_argument(
        "--ranks", type=_positive, default=0, help="number of ranks (default: as many as the file shows)"
    )
    trace.add_argument(
        "--experts-per-rank", type=_positive, default=0, metavar="N", help="experts are contiguous by rank"
    )
    trace.add_argument("--placement", type=Path, metavar="FILE", help="rank of each expert, or physical_to_logical_map")
    trace.add_argument("--source-rows", type=Path, metavar="FILE", help="what each rank sends (default: all the same)")
    trace.add_argument(
        "--token-copies",
        default=AUTO,
        choices=TOKEN_COPIES,
        help="a token for two experts on one rank counts twice or once (default: as the format sends it)",
    )
    trace.add_argument(
        "--direction", default="dispatch", choices=DIRECTIONS, help="combine is the transpose (default: dispatch)"
    )
    trace.add_argument(
        "--combine-token-bytes", type=whole_number, default=0, metavar="N", help="payload of a token on its way back"
    )


def demands_of(arguments: argparse.Namespace) -> DemandSequence:
    """Of FILE and its options. Raises InputError."""
    reading = Reading(
        format=arguments.format,
        steps=Chosen.parse(arguments.steps, "--steps"),
        layers=Chosen.parse(arguments.layers, "--layers"),
        ranks=arguments.ranks,
        experts_per_rank=arguments.experts_per_rank,
        placement=arguments.placement,
        source_rows=arguments.source_rows,
        token_copies=arguments.token_copies,
    )
    return load_demands(
        arguments.file,
        unit=arguments.unit,
        token_bytes=arguments.token_bytes,
        mtu_bytes=arguments.mtu_bytes,
        hosts_per_server=arguments.gpus_per_server,
        reading=reading,
        direction=arguments.direction,
        combine_token_bytes=arguments.combine_token_bytes,
    )


def check_demand_options(arguments: argparse.Namespace) -> None:
    """Ranges, as for the keys of an experiment. Raises InputError."""
    if arguments.link_gbps is not None and not 0.001 <= arguments.link_gbps <= 100_000:
        raise InputError(f"--link-gbps {arguments.link_gbps:g}: give a speed of 0.001 to 100000 Gb/s")
    if not 128 <= arguments.mtu_bytes <= 9216:
        raise InputError(f"--mtu-bytes {arguments.mtu_bytes}: give 128 to 9216")
    if not 1 <= arguments.gpus_per_server <= 64:
        raise InputError(f"--gpus-per-server {arguments.gpus_per_server}: give 1 to 64")


def whole_number(text: str) -> int:
    """A whole number, 0 or more; "30e6" is one too."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not value.is_integer() or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, 0 or more")
    return int(text) if text.isdigit() else int(value)


def _positive(text: str) -> int:
    """What 0 would leave open is left open by leaving the option out."""
    value = whole_number(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return value
