"""Throws changed files at the readers of demand formats: nothing may come of them but a trace or one line.

    python -m tests.fuzz [--seconds 300] [--format NAME] [--seed N] [--keep]

Files of tests/corpus/NAME are changed at random, put together anew where they are zip files, and read. A file that reaches a line of
the readers that no other has reached joins those that are changed. What ends otherwise than it should (another exception, a line
that is no line, ten seconds, four gigabytes, a dead process) is kept in build/fuzz and ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import multiprocessing
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from controller.demand import load_demands
from controller.errors import CannotRunError, InputError
from controller.formats import FORMATS, Chosen, Reading

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path(__file__).resolve().parent.parent / "build" / "fuzz"
NUMBERS = (
    *(
        b"0",
        b"1",
        b"-1",
        b"2147483647",
        b"2147483648",
        b"9223372036854775807",
        b"9223372036854775808",
        b"1e400",
        b"NaN",
    ),
    *(b"0.5", b"null", b"true", b"[]", b"{}", b'"x"', b"999", b"1000", b"1001", b"9" * 5000),
)
LIMIT_S = 10
MOST_DEMANDS = 8
READINGS = (
    Reading(),
    Reading(ranks=2),
    Reading(ranks=2, experts_per_rank=2),
    Reading(experts_per_rank=2),
    Reading(ranks=2, experts_per_rank=2, token_copies="per-rank"),
    Reading(ranks=2, token_copies="per-expert", steps=Chosen.parse("0:5", "steps"), layers=Chosen.parse("0", "layers")),
)
"""What is said of a file beside it."""


def attempt(path: Path, kind: str, reading: Reading) -> str:
    """Reads a file as far as anything does, and returns what came of it. Raises what must not be raised."""
    reading = _forced(reading, kind)
    try:
        try:
            sequence = load_demands(path, token_bytes=7168, reading=reading)
        except InputError as error:
            if "goes with unit tokens" not in str(error):
                raise
            sequence = load_demands(path, reading=reading)
        for index in range(min(len(sequence), MOST_DEMANDS)):
            sequence[index].max_port_bytes  # noqa: B018 (computed when asked for)
    except (InputError, CannotRunError) as error:
        line = str(error)
        if not line or "\n" in line or "\r" in line or len(line) > 2000:
            raise AssertionError(f"not one line: {line[:200]!r}") from error
        frames = [f"{frame.f_code.co_name}:{number}" for frame, number in traceback.walk_tb(error.__traceback__)]
        return " ".join(frames[-2:])
    for note in sequence.trace.notes:
        assert "\n" not in note, note
    return f"read {len(sequence)} {len(sequence.trace.notes)}"


def _forced(reading: Reading, kind: str) -> Reading:
    return Reading(**{**vars(reading), "format": kind})


def changed(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """One to six changes; inside of a zip file mostly to one of its entries."""
    if content.startswith(b"PK") and draw.random() < 0.8:
        rebuilt = _changed_zip(draw, content, others)
        if rebuilt is not None:
            return rebuilt
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        content = _changed_once(draw, content, others)
    return content[: 1 << 20]


def _changed_zip(draw: random.Random, content: bytes, others: list[bytes]) -> bytes | None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            entries = [(info.filename, file.read(info)) for info in file.infolist()]
    except Exception:  # noqa: BLE001 (what was changed before need not be a zip file any more)
        return None
    if not entries:
        return None
    victim = draw.randrange(len(entries))
    name, data = entries[victim]
    for _ in range(draw.choice((1, 1, 2, 4))):
        data = _changed_once(draw, data, others)
    entries[victim] = (name if draw.random() < 0.95 else name + "x", data)
    stream = io.BytesIO()
    with zipfile.ZipFile(
        stream, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as file:
        for name, data in entries:
            file.writestr(zipfile.ZipInfo(name), data)
    return stream.getvalue()


def _changed_once(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    if not content:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9)))
    place = draw.randrange(len(content))
    length = draw.choice((1, 1, 2, 4, 8, 16, 64))
    before, after = content[:place], content[place + length :]
    same = content[place : place + length]
    other = draw.choice(others)
    first = draw.randrange(len(other) or 1)
    kind = draw.randrange(9)
    if kind < 6:
        middle, rest = (
            (bytes([content[place] ^ (1 << draw.randrange(8))]), content[place + 1 :]),
            (bytes(draw.choice((0, 1, 127, 128, 255, draw.randrange(256))) for _ in same), after),
            (b"", after),
            (same * draw.choice((2, 2, 3, 50)), after),
            (other[first : first + draw.choice((4, 32, 256))], after),
            (b"", b""),
        )[kind]
        return before + middle + rest
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", content))
    if found and kind < 8:
        match = draw.choice(found)
        return content[: match.start()] + draw.choice(NUMBERS) + content[match.end() :]
    pieces = re.split(rb"(\n|,)", content)
    left, right = draw.randrange(len(pieces)), draw.randrange(len(pieces))
    pieces[left], pieces[right] = pieces[right], pieces[left]
    return b"".join(pieces)


class _TooLong(BaseException):
    pass


def _too_long(*_: Any) -> None:
    raise _TooLong


def fuzz(kind: str, seconds: float, seed: int, folder: Path, report: Any) -> None:
    """In a process of its own. Sends (tries, places reached, path and text of what went wrong)."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    signal.signal(signal.SIGALRM, _too_long)
    draw = random.Random(f"{seed}-{kind}")
    pool = [path.read_bytes() for path in sorted((CORPUS / kind).iterdir())]
    seeds = list(pool)
    reached: set[str] = set()
    tries = 0
    end = time.monotonic() + seconds
    target = folder / f"{kind}-rank0.bin"
    while time.monotonic() < end:
        content = changed(draw, draw.choice(pool), seeds) if tries >= len(seeds) else seeds[tries]
        tries += 1
        target.write_bytes(content)
        reading = draw.choice(READINGS)
        signal.alarm(LIMIT_S)
        try:
            place = attempt(target, draw.choice((kind, kind, "auto")), reading)
            signal.alarm(0)
        except BaseException as error:  # noqa: BLE001 (that is what is looked for)
            signal.alarm(0)
            FOUND.mkdir(parents=True, exist_ok=True)
            kept = FOUND / f"{kind}-{hashlib.sha256(content).hexdigest()[:12]}"
            kept.write_bytes(content)
            what = f"took {LIMIT_S} s\n" if isinstance(error, _TooLong) else ""
            report.send((tries, sorted(reached), f"{kept} with {reading}\n{what}{traceback.format_exc()}"))
            return
        if place not in reached:
            reached.add(place)
            pool.append(content)
    report.send((tries, sorted(reached), ""))


def main() -> int:
    """Each format, one after the other, for as long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300, help="for each reader")
    parser.add_argument(
        "--format", action="append", choices=[name for name in FORMATS if name != "auto"], help="of all"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    kinds = arguments.format or [folder.name for folder in sorted(CORPUS.iterdir())]
    wrong = 0
    print(f"seed {arguments.seed}, {arguments.seconds:g} s each")
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            receive, send = multiprocessing.Pipe(duplex=False)
            child = multiprocessing.Process(
                target=fuzz, args=(kind, arguments.seconds, arguments.seed, Path(folder), send)
            )
            child.start()
            send.close()
            try:
                tries, reached, text = receive.recv()
            except EOFError:
                child.join()
                FOUND.mkdir(parents=True, exist_ok=True)
                kept = FOUND / f"{kind}-dead"
                kept.write_bytes(next(Path(folder).iterdir()).read_bytes())
                tries, reached, text = 0, [], f"{kept}: the process died with {child.exitcode}"
            child.join()
        print(f"{kind:10} {tries} files, {len(reached)} ways to end: {'WRONG' if text else 'ok'}", flush=True)
        if text:
            wrong += 1
            print(text, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
