"""Ten million tokens in each format: how long they take to read, and how much memory at most, against the file.

    python benchmarks/formats.py [--tokens N] [FORMAT ...]

Each file is made in a temporary folder and read in a process of its own, whose peak of resident memory is counted from after its
imports. It has one thread, and the time that counts is that on a processor: others may use the machine. At most ten seconds and three
times the file are right, but for matrices of 1000 ranks that are small as a file: they are 8 MB once they are a demand, whatever was
read, and get 64 MB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from controller.demand import load_demands
from controller.formats import Reading
from controller.formats.htsim import written
from tests.torch_files import save

EXPERTS, TOP_K, RANKS = 256, 8, 8
TOKEN_BYTES = 7168
LIMIT_S = 10
SMALL_BYTES = 64 * 2**20
Made = tuple[Path, Reading, int]
"""Path, what is said of it, tokens that are in it."""


def drawn(tokens: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Different experts of each token, the first ones more often."""
    draw = np.random.default_rng(seed)
    return (np.sort(draw.integers(0, EXPERTS - TOP_K + 1, (tokens, TOP_K)), axis=1) + np.arange(TOP_K)).astype(np.int64)


def megatron(folder: Path, tokens: int) -> Made:
    """Eight ranks, records of 4096 tokens, as json.dumps writes them."""
    each = 4096
    chosen = drawn(each)
    for rank in range(RANKS):
        with (folder / f"router_trace_rank{rank}.jsonl").open("w") as file:
            for number in range(tokens // each // RANKS):
                rolled = np.roll(chosen, number + rank, axis=0).tolist()
                record = {
                    "step": number,
                    "stage": 0,
                    "block": 0,
                    "layer": 3,
                    "rank": rank,
                    "num_tokens": each,
                    "topk": TOP_K,
                }
                file.write(json.dumps({**record, "top_indices": rolled}) + "\n")
    return folder, Reading(experts_per_rank=EXPERTS // RANKS), tokens // each // RANKS * each * RANKS


def megatron_one_line(folder: Path, tokens: int) -> Made:
    """All in one record."""
    path = folder / "router_trace_rank0.jsonl"
    with path.open("w") as file:
        file.write(f'{{"step": 0, "layer": 0, "rank": 0, "num_tokens": {tokens}, "topk": {TOP_K}, "top_indices": [')
        for first in range(0, tokens, 10_000):
            file.write((", " if first else "") + json.dumps(drawn(min(10_000, tokens - first), first).tolist())[1:-1])
        file.write("]}\n")
    return path, Reading(experts_per_rank=EXPERTS // RANKS, ranks=RANKS), tokens


def sglang_tokens(folder: Path, tokens: int) -> Made:
    """Eight ranks, passes of 8192 tokens, one layer, with the lists of tokens that are pickled beside it."""
    each = 8192
    chosen = drawn(each).astype(np.int32)[None]
    passes = tokens // each // RANKS
    for rank in range(RANKS):
        records = [
            {
                "forward_pass_id": number,
                "rank": rank,
                "gatherer_key": "primary",
                "topk_ids_of_layer": chosen,
                "input_ids": list(range(50_000, 50_000 + each)),
                "positions": list(range(each)),
                "extend_seq_lens": [each],
                "misc_objects": [],
            }
            for number in range(passes)
        ]
        mapping = np.arange(EXPERTS)[None]
        save(
            folder / f"expert_distribution_recorder_1_{rank}.pt",
            {"records": records, "last_physical_to_logical_map": mapping},
        )
    return folder, Reading(), passes * each * RANKS


def sglang_statistics(folder: Path, tokens: int) -> Made:
    """58 layers, steps of 32768 tokens."""
    each, layers = 32768, 58
    counts = np.bincount(drawn(each).ravel(), minlength=EXPERTS).astype(np.int32)
    steps = tokens // each
    path = save(
        folder / "expert_distribution_recorder_1.pt", {"rank": 0, "logical_count": np.tile(counts, (steps, layers, 1))}
    )
    return path, Reading(ranks=RANKS), steps * each


def vllm(folder: Path, tokens: int) -> Made:
    """58 layers, 288 physical experts, steps of 32768 tokens."""
    each, layers, spare = 32768, 58, 32
    counts = np.bincount(drawn(each).ravel(), minlength=EXPERTS + spare).tolist()
    p2l = [*range(EXPERTS), *range(spare)]
    path = folder / "load.jsonl"
    meta = {
        "record_type": "eplb_load_meta",
        "version": 1,
        "model": "m",
        "num_ranks": RANKS,
        "num_groups": 1,
        "num_nodes": 1,
    }
    with path.open("w") as file:
        file.write(json.dumps({**meta, "num_layers": layers, "num_redundant_experts": spare}) + "\n")
        for step in range(tokens // each):
            record = {"record_type": "eplb_load_stats", "version": 1, "step": step, "expert_load": [counts] * layers}
            file.write(json.dumps({**record, "p2l_map": [p2l] * layers}) + "\n")
    return path, Reading(), tokens // each * each


def deepep(folder: Path, tokens: int) -> Made:
    """Eight ranks, topk_idx of int64 as NPZ."""
    for rank in range(RANKS):
        np.savez(folder / f"layout_rank{rank}.npz", topk_idx=drawn(tokens // RANKS, rank))
    return folder, Reading(experts_per_rank=EXPERTS // RANKS), tokens // RANKS * RANKS


def splits(folder: Path, tokens: int) -> Made:
    """64 ranks, calls of 64 tokens each, as decoding makes them."""
    ranks, each = 64, 64
    calls = tokens // each // ranks
    row = [1] * ranks
    for rank in range(ranks):
        with (folder / f"rank{rank}.jsonl").open("w") as file:
            line = json.dumps({"rank": rank, "input_split_sizes": row, "output_split_sizes": row}) + "\n"
            file.write(line * calls)
    return folder, Reading(), calls * each * ranks


def _matrix(tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(1).multinomial(tokens, np.full(10**6, 1e-6)).reshape(1000, 1000)


def _steps(tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[steps, 61 layers, 64 senders, 64 receivers]: 64 tokens a rank and step, each to 8 experts, some of which are popular."""
    layers, ranks = 61, 64
    popular = np.random.default_rng(1).permutation(1 / np.arange(1, ranks + 1) ** 0.5)
    shape = (tokens // (layers * ranks * 64), layers, ranks)
    return np.random.default_rng(2).multinomial(64 * TOP_K, popular / popular.sum(), shape)


def csv(folder: Path, tokens: int) -> Made:
    """1000 x 1000, in bytes."""
    np.savetxt(folder / "m.csv", TOKEN_BYTES * _matrix(tokens), fmt="%d", delimiter=",")
    return folder / "m.csv", Reading(), tokens


def npy(folder: Path, tokens: int) -> Made:
    """1000 x 1000, int64, in bytes."""
    np.save(folder / "m.npy", TOKEN_BYTES * _matrix(tokens))
    return folder / "m.npy", Reading(), tokens


def npz(folder: Path, tokens: int) -> Made:
    """Steps and layers, int64, compressed."""
    steps = _steps(tokens)
    np.savez_compressed(folder / "m.npz", demand=steps)
    return folder / "m.npz", Reading(), int(steps.sum()) // TOP_K


def parquet(folder: Path, tokens: int) -> Made:
    """Steps and layers, a row a pair of ranks."""
    import pyarrow
    import pyarrow.parquet

    steps = _steps(tokens)
    columns = dict(
        zip(("step", "layer", "src", "dst"), (each.ravel() for each in np.indices(steps.shape)), strict=True)
    )
    pyarrow.parquet.write_table(pyarrow.table({**columns, "tokens": steps.ravel()}), folder / "m.parquet")
    return folder / "m.parquet", Reading(), int(steps.sum()) // TOP_K


def csv_small(folder: Path, tokens: int) -> Made:
    """1000 x 1000, in tokens."""
    np.savetxt(folder / "m.csv", _matrix(tokens), fmt="%d", delimiter=",")
    return folder / "m.csv", Reading(), tokens


def npz_small(folder: Path, tokens: int) -> Made:
    """1000 x 1000, in tokens."""
    np.savez_compressed(folder / "m.npz", demand=_matrix(tokens))
    return folder / "m.npz", Reading(), tokens


def parquet_small(folder: Path, tokens: int) -> Made:
    """1000 x 1000, a row a pair of ranks."""
    import pyarrow
    import pyarrow.parquet

    source, destination = (each.ravel() for each in np.indices((1000, 1000)))
    table = pyarrow.table({"src": source, "dst": destination, "tokens": _matrix(tokens).ravel()})
    pyarrow.parquet.write_table(table, folder / "m.parquet")
    return folder / "m.parquet", Reading(), tokens


def htsim(folder: Path, tokens: int) -> Made:
    """A connection a pair of nodes."""
    (folder / "m.cm").write_text(written("m.cm", _matrix(tokens)))
    return folder / "m.cm", Reading(), tokens


FORMATS: dict[str, Callable[[Path, int], Made]] = {
    each.__name__: each
    for each in (
        *(megatron, megatron_one_line, sglang_tokens, sglang_statistics, vllm, deepep, splits),
        *(csv, npy, npz, parquet, htsim, csv_small, npz_small, parquet_small),
    )
}
IN_BYTES = ("csv", "npy")
BY_BYTES = (*IN_BYTES, "htsim")
"""What they hold is no number of tokens."""


def read(path: Path, small: Path | None, reading: Reading, tokens: bool, send: Any) -> None:
    """In a process of its own: seconds, of which on a processor, bytes above what it had before, demands, tokens or bytes in them."""
    if small:  # what a library takes for itself once (pyarrow 80 MB, most of it code) is not the file's
        load_demands(small, unit="tokens", token_bytes=1)
    before = _peak_bytes()
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    unit, token_bytes = ("tokens", 1) if tokens else ("auto", 0)
    sequence = load_demands(path, unit=unit, token_bytes=token_bytes, reading=reading)
    counted = sum(int(sequence.trace.matrix(index).sum()) for index in range(len(sequence)))
    last = sequence[len(sequence) - 1].max_port_bytes
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    send.send((took_s, cpu_s, _peak_bytes() - before, len(sequence), counted, last))


def _peak_bytes() -> int:
    """Of this process, since it began to be this program: a peak by getrusage is its parent's as well."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def main() -> int:
    """One line a format; exit code 1 where one is over its limits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--tokens", type=int, default=10**7)
    arguments = parser.parse_args()
    over = 0
    print(
        f"{'format':18} {'tokens':>9} {'file [MB]':>9} {'time [s]':>8} {'CPU [s]':>8} {'peak [MB]':>9} {'peak/file':>9} {'demands':>7}"
    )
    for name in arguments.formats or FORMATS:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            small = parquet(Path(other), 61 * 64 * 64)[0] if name.startswith("parquet") else None
            path, reading, tokens = FORMATS[name](Path(folder), arguments.tokens)
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
            receive, send = multiprocessing.get_context("spawn").Pipe(duplex=False)
            in_tokens = name not in BY_BYTES
            child = multiprocessing.get_context("spawn").Process(
                target=read, args=(path, small, reading, in_tokens, send)
            )
            child.start()
            send.close()
            took_s, cpu_s, peak, demands, counted, _ = receive.recv()
            child.join()
        copies = counted / tokens / (TOKEN_BYTES if name in IN_BYTES else 1)
        if copies not in (1, TOP_K, TOP_K * 58) and name != "deepep":
            print(f"{name}: {counted} counted of {tokens} tokens")
            over += 1
        limit = max(3 * size, SMALL_BYTES) if name.endswith("_small") else 3 * size
        bad = cpu_s > LIMIT_S or peak > limit
        over += bad
        print(
            f"{name:18} {tokens:>9} {size / 1e6:>9.1f} {took_s:>8.2f} {cpu_s:>8.2f} {peak / 1e6:>9.1f} {peak / size:>9.2f} {demands:>7}"
            f"{'  OVER' if bad else ''}",
            flush=True,
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
