"""Traces of frameworks: a small file of each format, written by hand from its public definition, and what it comes to."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from controller.demand import load_demand, load_demands
from controller.errors import CannotRunError, InputError
from controller.formats import Chosen, Reading, Trace, detect, files_of, read_trace
from controller.formats.htsim import written
from controller.formats.placement import spread
from tests.torch_files import save

pytestmark = pytest.mark.filterwarnings("error")

TOP = 2**63 - 1


def text(folder: Path, content: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def lines(folder: Path, records: Sequence[Any], name: str = "trace.jsonl") -> Path:
    return text(folder, "".join(json.dumps(record) + "\n" for record in records), name)


def matrices(trace: Trace) -> list[Any]:
    return [trace.matrix(index).tolist() for index in range(len(trace))]


def places(trace: Trace) -> list[str]:
    return [str(place) for place in trace.places]


def refusal(path: Path, reading: Reading | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path, reading)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path.parent) in line or "--" in line
    assert len(line) < 500
    return line


def said(trace: Trace) -> str:
    return " | ".join(trace.notes)


# --- steps and layers ---


@pytest.mark.parametrize(
    ("words", "inside", "outside"),
    [
        ("", [0, 5, 10**9], []),
        ("3", [3], [2, 4]),
        ("2:5", [2, 3, 4], [1, 5]),
        (":2", [0, 1], [2]),
        ("7:", [7, 10**9], [6]),
        ("0, 4:6 ,9", [0, 4, 5, 9], [1, 3, 6, 10]),
    ],
)
def test_what_is_chosen(words: str, inside: list[int], outside: list[int]) -> None:
    chosen = Chosen.parse(words, "steps")
    assert all(number in chosen for number in inside)
    assert not any(number in chosen for number in outside)


@pytest.mark.parametrize("words", ["a", "1:2:3", "-1", "5:5", "6:2", ",", "1,,2", "9" * 30, "1.5", "²"])
def test_what_cannot_be_chosen(words: str) -> None:
    with pytest.raises(InputError, match=r"steps .*: give numbers|names nothing"):
        Chosen.parse(words, "steps")


# --- sources that are not known ---


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64])
def test_a_uniform_spread_keeps_every_column_and_evens_the_rows(ranks: int) -> None:
    columns = np.random.default_rng(ranks).integers(0, 1000, ranks)
    demand = spread(columns, np.ones(ranks, dtype=np.int64))
    assert demand.sum(axis=0).tolist() == columns.tolist()
    assert (abs(demand - columns[None, :] / ranks) < 1).all()
    rows = demand.sum(axis=1)
    assert rows.max() - rows.min() <= 1


def test_a_spread_by_weights() -> None:
    """Shares 1 : 3 : 0 of 8 and 4 tokens are 2, 6, 0 and 1, 3, 0."""
    assert spread(np.array([8, 4, 0]), np.array([1, 3, 0])).tolist() == [[2, 1, 0], [6, 3, 0], [0, 0, 0]]


def test_a_spread_of_large_numbers_is_exact() -> None:
    columns = np.array([TOP, TOP - 1, 12345])
    demand = spread(columns, np.array([2**29, 2**29, 7]))
    assert [sum(int(n) for n in column) for column in demand.T] == columns.tolist()
    assert (demand >= 0).all()


# --- SGLang ---


def statistics(folder: Path, counts: Any, **others: Any) -> Path:
    value = {"rank": 0, "logical_count": np.array(counts, dtype=np.int32), "average_utilization_rate_over_window": None}
    return save(folder / "expert_distribution_recorder_1.5.pt", {**value, **others})


def test_sglang_statistics(tmp_path: Path) -> None:
    """4 experts on 2 ranks: loads 1 + 2 and 3 + 4, of which each of the two ranks sends half."""
    path = statistics(tmp_path, [[[1, 1, 4, 4]], [[6, 0, 0, 2]]])
    assert detect(path) == "sglang"
    trace = read_trace(path, Reading(ranks=2))
    assert (trace.unit, places(trace)) == ("tokens", ["step 0 layer 0", "step 1 layer 0"])
    assert matrices(trace) == [[[1, 4], [1, 4]], [[3, 1], [3, 1]]]
    assert "no source rows: each of the 2 ranks is taken to send the same share" in said(trace)
    assert matrices(read_trace(path, Reading(experts_per_rank=2))) == matrices(trace)
    four = matrices(read_trace(path, Reading(ranks=4)))
    assert np.sum(four[0], axis=0).tolist() == [1, 1, 4, 4]
    assert four[0] == [[1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]


def test_sglang_sources_may_be_given(tmp_path: Path) -> None:
    path = statistics(tmp_path, [[[1, 3, 4, 4]]])
    shares = text(tmp_path, "3\n1\n", "rows.csv")
    trace = read_trace(path, Reading(ranks=2, source_rows=shares))
    assert matrices(trace) == [[[3, 6], [1, 2]]]
    assert f"each rank is taken to send its share by {shares}" in said(trace)
    quiet = text(tmp_path, "[0, 1.5]", "rows.json")
    trace = read_trace(path, Reading(ranks=2, source_rows=quiet))
    assert matrices(trace) == [[[0, 0], [4, 8]]]
    assert "rank 0 sends nothing" in said(trace)


@pytest.mark.parametrize("content", ["1\n2\n3\n", "-1\n2\n", "0\n0\n", "nan\n1\n", "[1]", "x\n", ""])
def test_sources_that_cannot_be(tmp_path: Path, content: str) -> None:
    refusal(statistics(tmp_path, [[[1, 1]]]), Reading(ranks=2, source_rows=text(tmp_path, content, "rows")))


def test_sglang_ring_buffers_and_dense_layers_are_left_out(tmp_path: Path) -> None:
    counts = np.zeros((3, 2, 4), dtype=np.int32)
    counts[1, 1] = [2, 2, 2, 2]
    trace = read_trace(statistics(tmp_path, counts), Reading(ranks=2))
    assert places(trace) == ["step 1 layer 1"]
    assert "5 of 6 demands are all zero and left out, among them all of layer 0" in said(trace)


def test_all_zero_is_a_demand_of_nothing(tmp_path: Path) -> None:
    path = statistics(tmp_path, np.zeros((2, 1, 4)))
    trace = read_trace(path, Reading(ranks=2))
    assert matrices(trace) == [[[0, 0], [0, 0]]]
    assert "all 2 demands are all zero" in said(trace)
    assert load_demand(path, token_bytes=7168, reading=Reading(ranks=2)).max_port_bytes == 0


def test_sglang_layers_of_unequal_totals_are_said(tmp_path: Path) -> None:
    trace = read_trace(statistics(tmp_path, [[[4, 4], [5, 2]]]), Reading(ranks=2))
    assert "unequal totals, 7 to 8 at step 0" in said(trace)
    assert "unequal totals" not in said(read_trace(statistics(tmp_path, [[[4, 4], [6, 2]]]), Reading(ranks=2)))


def test_sglang_steps_and_layers_are_chosen(tmp_path: Path) -> None:
    path = statistics(tmp_path, np.ones((5, 3, 2)))
    chosen = Reading(ranks=2, steps=Chosen.parse("1:3", "steps"), layers=Chosen.parse("0,2", "layers"))
    assert places(read_trace(path, chosen)) == [f"step {s} layer {n}" for s in (1, 2) for n in (0, 2)]
    assert "none of the steps and layers" in refusal(path, Reading(ranks=2, steps=Chosen.parse("9", "steps")))


@pytest.mark.parametrize(
    ("counts", "reading", "words"),
    [
        ([[[1, 1, 1]]], Reading(ranks=2), "3 experts do not divide by 2 ranks"),
        ([[[1, 1, 1, 1]]], Reading(), "does not say on which ranks its 4 experts are: give --ranks"),
        ([[[1, 1, 1, 1]]], Reading(ranks=2, experts_per_rank=4), "4 experts are not 2 ranks with 4 each"),
        ([[[1, 1, 1, 1]]], Reading(experts_per_rank=3), "do not divide by --experts-per-rank 3"),
        ([[[1, 1, 1, 1]]], Reading(ranks=5000), "1 to 1000 are supported"),
        ([[[1, 1, 1, -1]]], Reading(ranks=2), "step 0, layer 0, expert 3 is negative"),
        ([[[1, 1]]], Reading(ranks=2, token_copies="per-rank"), "cannot be told from it"),
        (np.zeros((0, 2, 2)), Reading(ranks=2), "it holds nothing"),
        (np.zeros(4), Reading(ranks=2), "1 dimensions: whole numbers in 2 or 3"),
    ],
)
def test_sglang_statistics_that_cannot_be(tmp_path: Path, counts: Any, reading: Reading, words: str) -> None:
    assert words in refusal(statistics(tmp_path, counts), reading)


def test_sglang_placement_with_replicas(tmp_path: Path) -> None:
    """Physical experts 0 1 | 2 0: of expert 0's five tokens its first replica gets three. Rank 0: 3 + 4, rank 1: 2 + 2."""
    placement = text(tmp_path, json.dumps({"physical_to_logical_map": [[0, 1, 2, 0]]}), "placement.json")
    path = statistics(tmp_path, [[[5, 4, 2]]])
    (demand,) = matrices(read_trace(path, Reading(ranks=2, placement=placement)))
    assert np.sum(demand, axis=0).tolist() == [7, 4]
    saved = save(tmp_path / "placement.pt", {"physical_to_logical_map": np.array([[0, 1, 2, 0]])})
    assert matrices(read_trace(path, Reading(ranks=2, placement=saved))) == [demand]
    listed = text(tmp_path, "[1, 0, 1]", "ranks.json")
    (demand,) = matrices(read_trace(path, Reading(placement=listed)))
    assert np.sum(demand, axis=0).tolist() == [4, 7]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[0, 1]", "2: they must agree"),
        ("[0, 1, 9]", "rank 9 is not one of 2"),
        ("[0, 1, -1]", "-1: it must be 0 or more"),
        ("[]", "places no expert"),
        ("{}", "has no physical_to_logical_map"),
        ('{"physical_to_logical_map": [0, 1, 2]}', "3 experts do not divide by 2 ranks"),
        ('{"physical_to_logical_map": [[0, 1], [2]]}', "1 to 2 numbers"),
        ('{"physical_to_logical_map": [0, 0, 2, 2]}', "expert 1 has tokens, but the placement puts it nowhere"),
        ("{", "is not JSON"),
        ("[1, true, 0]", "holds True, which is not a whole number"),
    ],
)
def test_placements_that_cannot_be(tmp_path: Path, content: str, words: str) -> None:
    placement = text(tmp_path, content, "placement.json")
    assert words in refusal(statistics(tmp_path, [[[5, 4, 2]]]), Reading(ranks=2, placement=placement))


def record(step: int, rank: int, counts: Any, chosen: Any = None, **others: Any) -> dict[str, Any]:
    value = {"forward_pass_id": step, "rank": rank, "gatherer_key": "primary"}
    value["global_physical_count"] = np.array(counts, dtype=np.int32)
    if chosen is not None:
        value["topk_ids_of_layer"] = np.array(chosen, dtype=np.int32)
        value |= {"input_ids": list(range(300)), "positions": [0, 70000], "extend_seq_lens": [2], "forward_mode": 1}
        value["misc_objects"] = []
    return value | others


def dump(folder: Path, rank: int, records: list[dict[str, Any]], physical: int = 4, layers: int = 1) -> Path:
    mapping = np.tile(np.arange(physical), (layers, 1))
    value = {"records": records, "last_physical_to_logical_map": mapping}
    return save(folder / f"expert_distribution_recorder_1.5_{rank}.pt", value)


TOKENS = ([[[0, 1], [3, -1]]], [[[2, 3], [2, 0]]])
"""Of ranks 0 and 1, [layers, tokens, k]: 4 experts, two a rank."""


def test_sglang_tokens_have_rows(tmp_path: Path) -> None:
    """Rank 0 sends token (0, 1) to rank 0, for two experts, and (3) to rank 1; rank 1 sends (2, 3) and (2, 0)."""
    for rank in (0, 1):
        dump(tmp_path, rank, [record(7, rank, [[2, 1, 2, 2]], TOKENS[rank])])
    trace = read_trace(tmp_path)
    assert (trace.format, places(trace)) == ("sglang", ["step 7 layer 0"])
    assert matrices(trace) == [[[2, 1], [1, 3]]]
    assert "no source rows" not in said(trace)
    assert "do not add up" not in said(trace)
    assert matrices(read_trace(tmp_path / "*.pt")) == matrices(trace)
    assert matrices(read_trace(tmp_path, Reading(token_copies="per-rank"))) == [[[1, 1], [1, 2]]]


def test_sglang_with_deepep_counts_a_token_once_a_rank(tmp_path: Path) -> None:
    layouts = [{"num_tokens_per_rank": np.array([1, 1], dtype=np.int32)}]
    for rank in (0, 1):
        dump(tmp_path, rank, [record(7, rank, [[2, 1, 2, 2]], TOKENS[rank], misc_objects=layouts)])
    trace = read_trace(tmp_path)
    assert matrices(trace) == [[[1, 1], [1, 2]]]
    assert "counts once (as DeepEP sends it)" in said(trace)
    assert matrices(read_trace(tmp_path, Reading(token_copies="per-expert"))) == [[[2, 1], [1, 3]]]


def test_sglang_tokens_that_disagree_with_the_counts_are_said(tmp_path: Path) -> None:
    for rank in (0, 1):
        dump(tmp_path, rank, [record(7, rank, [[2, 1, 2, 5]], TOKENS[rank])])
    assert "1 of 1 demands do not add up to global_physical_count, first of pass 7, layer 0" in said(
        read_trace(tmp_path)
    )


def test_sglang_a_rank_without_a_dump_sends_nothing(tmp_path: Path) -> None:
    path = dump(tmp_path, 1, [record(7, 1, [[1, 0, 2, 1]], TOKENS[1])])
    trace = read_trace(path)
    assert matrices(trace) == [[[0, 0], [1, 3]]]
    assert "rank 0 of 2 has no records: it is taken to send nothing" in said(trace)


def test_sglang_passes_alone_have_no_rows(tmp_path: Path) -> None:
    path = dump(tmp_path, 0, [record(3, 0, [[2, 2, 0, 4]]), record(4, 0, [[0, 0, 0, 0]])])
    trace = read_trace(path, Reading(ranks=2))
    assert places(trace) == ["step 3 layer 0"]
    assert matrices(trace) == [[[2, 2], [2, 2]]]
    assert "no source rows" in said(trace)
    assert "give --ranks" in refusal(path)


def test_sglang_records_that_cannot_be(tmp_path: Path) -> None:
    def with_record(value: Any, **options: Any) -> str:
        return refusal(dump(tmp_path, 0, [value], **options), Reading(ranks=2))

    assert "expert 4 is not one of 4" in with_record(record(1, 0, [[0, 0, 0, 0]], [[[4, 0]]]))
    assert "expert -2 is negative" in with_record(record(1, 0, [[0, 0, 0, 0]], [[[-2, 0]]]))
    assert "rank 5 is not one of 2" in with_record(record(1, 5, [[0, 0, 0, 0]], [[[1, 0]]]))
    assert "5 experts do not divide by 2 ranks" in with_record(record(1, 0, [[0] * 5]), physical=5)
    assert "no forward_pass_id" in with_record(record(-1, 0, [[0, 0, 0, 0]]))
    assert "is not a dictionary" in with_record([1])
    assert "has no records" in refusal(dump(tmp_path, 0, []))
    twice = [record(1, 0, [[0, 0, 0, 0]], TOKENS[0])] * 2
    assert "is there twice" in refusal(dump(tmp_path, 0, twice), Reading(ranks=2))
    mixed = [record(1, 0, [[0, 0, 0, 0]], TOKENS[0]), record(2, 0, [[0, 0, 0, 0]])]
    assert "record in one mode" in refusal(dump(tmp_path, 0, mixed), Reading(ranks=2))
    dump(tmp_path, 0, [record(1, 0, [[1, 0, 0, 0]])])
    dump(tmp_path, 1, [record(1, 1, [[2, 0, 0, 0]])])
    assert "is not what another rank has for pass 1" in refusal(tmp_path)


def test_sglang_old_tables(tmp_path: Path) -> None:
    """One file a rank, sparse: its own row. One file alone has no sources."""
    header = "layer_id,expert_id,count\n"
    text(tmp_path, header + "0,0,3\n0,3,1\n2,1,5\n", "expert_distribution_rank0_timestamp1.csv")
    text(tmp_path, header + "0,2,4\n", "expert_distribution_rank1_timestamp1.csv")
    trace = read_trace(tmp_path, Reading(experts_per_rank=2))
    assert (places(trace), matrices(trace)) == (["layer 0", "layer 2"], [[[3, 1], [0, 4]], [[5, 0], [0, 0]]])
    alone = tmp_path / "expert_distribution_rank0_timestamp1.csv"
    assert detect(alone) == "sglang"
    trace = read_trace(alone, Reading(experts_per_rank=2, ranks=2))
    assert "no source rows" in said(trace)
    assert np.sum(matrices(trace)[0], axis=0).tolist() == [3, 1]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "counts nothing"),
        ("0,0\n", "row 2 is not three whole numbers"),
        ("0,0,-1\n", "row 2 is not three whole numbers"),
        ("0,0,1.5\n", "row 2 is not three whole numbers"),
        ("0,7,1\n", "expert 7 is not one of 4"),
        (f"0,{2**40},1\n", "is above 1048576"),
        ("0,0," + "9" * 18 + "\n" + "0,0," + "9" * 18 + "\n" + "0,0," + "9" * 18 + "\n0,1,1\n", "2^63"),
    ],
)
def test_sglang_old_tables_that_cannot_be(tmp_path: Path, rows: str, words: str) -> None:
    path = text(tmp_path, "layer_id,expert_id,count\n" + rows, "t.csv")
    assert words in refusal(path, Reading(ranks=2, experts_per_rank=2))


# --- vLLM ---

META: dict[str, Any] = {
    "record_type": "eplb_load_meta",
    "version": 1,
    "model": "m",
    "num_ranks": 2,
    "num_groups": 1,
    "num_nodes": 1,
    "num_layers": 1,
    "num_redundant_experts": 1,
}


def stats(step: int, load: Any, p2l: Any) -> dict[str, Any]:
    return {"record_type": "eplb_load_stats", "version": 1, "step": step, "expert_load": load, "p2l_map": p2l}


GOOD = stats(5, [[2, 4, 6, 8]], [[0, 1, 2, 0]])


def test_vllm(tmp_path: Path) -> None:
    """Physical experts 0, 1 on rank 0 and 2, 3 on rank 1: 6 and 14, half from each."""
    path = lines(tmp_path, [META, GOOD, stats(6, [[0, 0, 2, 0]], [[0, 1, 2, 0]])])
    assert detect(path) == "vllm"
    trace = read_trace(path)
    assert (places(trace), matrices(trace)) == (
        ["step 5 layer 0", "step 6 layer 0"],
        [[[3, 7], [3, 7]], [[0, 1], [0, 1]]],
    )
    assert "no source rows" in said(trace)
    assert "replicas count where they are" in said(trace)


def test_vllm_replicas_are_added_where_experts_are_placed_anew(tmp_path: Path) -> None:
    """Logical loads 2 + 8, 4 and 6; expert 0 on rank 2, 1 on 0, 2 on 1: columns 4, 6, 10, a third from each."""
    placement = text(tmp_path, "[2, 0, 1]", "placement.json")
    trace = read_trace(lines(tmp_path, [META, GOOD]), Reading(placement=placement))
    assert np.sum(matrices(trace)[0], axis=0).tolist() == [4, 6, 10]
    assert "replicas are added up" in said(trace)
    each = read_trace(lines(tmp_path, [META, GOOD]), Reading(experts_per_rank=1))
    assert np.sum(matrices(each)[0], axis=0).tolist() == [10, 4, 6]


def test_vllm_unequal_layers_are_said(tmp_path: Path) -> None:
    two = stats(1, [[1, 1, 1, 1], [1, 1, 1, 2]], [[0, 1, 2, 0]] * 2)
    assert "unequal totals, 4 to 5 at step 1" in said(read_trace(lines(tmp_path, [{**META, "num_layers": 2}, two])))


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([META], "has no eplb_load_stats line"),
        ([GOOD], "line 1 has statistics before the eplb_load_meta"),
        ([META, META, GOOD], "line 2 is a second eplb_load_meta"),
        ([META, {"record_type": "other"}], "line 2: record_type 'other' is not known"),
        ([META, 5], "line 2 is not a record"),
        ([{**META, "version": 2}], "version 2 is not known"),
        ([{**META, "num_ranks": None}, GOOD], "num_ranks is no whole number"),
        ([{**META, "num_ranks": 3}, GOOD], "4 experts do not divide by 3 ranks"),
        ([{**META, "num_layers": 2}, GOOD], "num_layers is 2"),
        ([META, stats(1, [[1, 2, 3, 4]], [[0, 1, 2]])], "expert_load is 1 x 4, p2l_map 1 x 3"),
        ([META, stats(1, [[1, 2, 3, 4]], [[0, 1, 2, 3]])], "p2l_map names expert 3"),
        ([META, stats(1, [[1, 2, 3, -4]], [[0, 1, 2, 0]])], "-4: it must be 0 or more"),
        ([META, stats(1, [[1, 2, 3, 2**63]], [[0, 1, 2, 0]])], "below 2^63"),
        ([META, stats(1, [[1, 2, 3, 1.5]], [[0, 1, 2, 0]])], "holds 1.5, which is not a whole number"),
        ([META, stats(1, [[1, 2, 3, True]], [[0, 1, 2, 0]])], "holds True"),
        ([META, stats(1, [[1, 2, 3, float("nan")]], [[0, 1, 2, 0]])], "holds a number that is not used (NaN)"),
        ([META, stats(1, [], [])], "num_layers is 1"),
        ([META, stats(-1, [[1]], [[0]])], "step is no whole number"),
        ([META, GOOD, GOOD], "line 3 has step 5, as line 2 has: leave one of them out"),
    ],
)
def test_vllm_records_that_cannot_be(tmp_path: Path, records: list[Any], words: str) -> None:
    assert words in refusal(lines(tmp_path, records), Reading(format="vllm"))


# --- Megatron ---


def routed(rank: int, chosen: Any, step: int = 1, layer: int = 3, **others: Any) -> dict[str, Any]:
    value = {"step": step, "stage": 0, "block": 0, "layer": layer, "rank": rank, "num_tokens": len(chosen)}
    return {**value, "topk": len(chosen[0]) if chosen else 2, "top_indices": chosen, **others}


def routes(folder: Path, *of_ranks: list[dict[str, Any]]) -> Path:
    for rank, records in enumerate(of_ranks):
        lines(folder, records, f"router_trace_rank{rank}.jsonl")
    return folder


def test_megatron(tmp_path: Path) -> None:
    """Two experts a rank: rank 0 sends (0, 1) and (3, 0), rank 1 sends (2, 3)."""
    routes(tmp_path, [routed(0, [[0, 1], [3, 0]])], [routed(1, [[2, 3]])])
    trace = read_trace(tmp_path, Reading(experts_per_rank=2))
    assert (trace.format, trace.unit, places(trace)) == ("megatron", "tokens", ["step 1 layer 3"])
    assert matrices(trace) == [[[3, 1], [0, 2]]]
    assert "once for each of them (as split sizes count it)" in said(trace)
    once = read_trace(tmp_path, Reading(experts_per_rank=2, token_copies="per-rank"))
    assert matrices(once) == [[[2, 1], [0, 1]]]
    placement = text(tmp_path, "[1, 1, 0, 0]", "placement.json")
    assert matrices(read_trace(tmp_path, Reading(placement=placement))) == [[[1, 3], [2, 0]]]


def test_megatron_split_sizes_are_the_same_as_of_its_tokens(tmp_path: Path) -> None:
    """num_local_tokens_per_expert of the same tokens, reshaped to 2 x 2 and summed."""
    folder = tmp_path / "splits"
    folder.mkdir()
    for rank, counts in enumerate(([2, 1, 0, 1], [0, 0, 1, 1])):
        np.savez(folder / f"rank{rank}.npz", num_local_tokens_per_expert=np.array(counts))
    assert matrices(read_trace(folder)) == [[[3, 1], [0, 2]]]


def test_megatron_steps_layers_and_microbatches(tmp_path: Path) -> None:
    """In order of step and layer; what repeats a step and layer is a demand of its own."""
    own = [routed(0, [[1]], 2, 0), routed(0, [[0]], 1, 5), routed(0, [[1]], 1, 5), routed(0, [[1]], 1, 4, mtp_idx=0)]
    routes(tmp_path, own, [routed(1, [[0]], 1, 5)])
    trace = read_trace(tmp_path, Reading(experts_per_rank=1))
    assert places(trace) == ["step 1 layer 4 mtp 0", "step 1 layer 5", "step 1 layer 5 call 2", "step 2 layer 0"]
    assert matrices(trace) == [[[0, 1], [0, 0]], [[1, 0], [1, 0]], [[0, 1], [0, 0]], [[0, 1], [0, 0]]]
    assert "step 1 layer 4 mtp 0: no record of rank 1, so in 3 of 4 demands" in said(trace)
    chosen = Reading(experts_per_rank=1, steps=Chosen.parse("1", "steps"), layers=Chosen.parse("5", "layers"))
    assert places(read_trace(tmp_path, chosen)) == ["step 1 layer 5", "step 1 layer 5 call 2"]


def test_megatron_a_rank_without_tokens_or_file(tmp_path: Path) -> None:
    routes(tmp_path, [routed(0, [[3, 5]])], [routed(1, [])])
    trace = read_trace(tmp_path, Reading(experts_per_rank=2))
    assert matrices(trace) == [[[0, 1, 1], [0, 0, 0], [0, 0, 0]]]
    assert "rank 2 of 3 has no records" in said(trace)


def test_megatron_files_that_contradict_each_other(tmp_path: Path) -> None:
    routes(tmp_path, [routed(0, [[0, 1]])], [routed(1, [[0, 1]])])
    lines(tmp_path, [routed(1, [[0, 1]])], "router_trace_rank01.jsonl")
    with pytest.raises(InputError, match=r"has step 1, layer 3 of rank 1 as well: leave one out"):
        read_trace(tmp_path, Reading(experts_per_rank=1))
    lines(tmp_path, [routed(0, [[0, 1]])], "router_trace_rank01.jsonl")
    with pytest.raises(InputError, match=r"rank01.jsonl: line 1: rank 0, but the file's name says 1"):
        read_trace(tmp_path, Reading(experts_per_rank=1))


def test_megatron_says_which_ranks_no_token_chose(tmp_path: Path) -> None:
    """As where --experts-per-rank is too large."""
    routes(tmp_path, [routed(0, [[0, 1], [2, 3]])], [routed(1, [[3, 1]])])
    assert "no token" not in said(read_trace(tmp_path, Reading(experts_per_rank=2)))
    wrong = said(read_trace(tmp_path, Reading(experts_per_rank=4)))
    assert "no token chose an expert of rank 1 of 2: check where experts are" in wrong


def test_a_matrix_has_no_use_for_options_of_traces(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave --token-copies out"):
        read_trace(text(tmp_path, "0,1\n1,0\n", "m.csv"), Reading(token_copies="per-rank"))
    routes(tmp_path, [routed(0, [[0, 1]])])
    with pytest.raises(InputError, match="leave --source-rows out"):
        read_trace(tmp_path / "router_trace_rank0.jsonl", Reading(experts_per_rank=2, source_rows=tmp_path / "m.csv"))


ONE = Chosen.parse("1", "")


@pytest.mark.parametrize(
    ("name", "content", "reading", "words"),
    [
        ("a.cm", "Nodes 2\n", Reading(steps=ONE), "is one matrix: leave --steps out"),
        ("a.cm", "Nodes 2\n", Reading(layers=ONE), "is one matrix: leave --layers out"),
        ("a.cm", "Nodes 2\n", Reading(ranks=2), "leave --ranks out"),
        ("a.cm", "Nodes 2\n", Reading(token_copies="per-rank"), "leave --token-copies out"),
        ("splits", '[{"rank": 0, "in_split": [1]}]', Reading(experts_per_rank=2), "leave --experts-per-rank out"),
        ("splits", '[{"rank": 0, "in_split": [1]}]', Reading(placement=Path("p")), "leave --placement out"),
        ("splits", '[{"rank": 0, "in_split": [1]}]', Reading(source_rows=Path("s")), "leave --source-rows out"),
        ("deepep", '[{"num_tokens_per_rank": [[1]]}]', Reading(source_rows=Path("s")), "leave --source-rows out"),
        ("deepep", '[{"num_tokens_per_rank": [[1]]}]', Reading(steps=ONE), "leave --steps out"),
        ("deepep", '[{"num_tokens_per_rank": [[1]]}]', Reading(ranks=2), "have 1 rank, but --ranks is 2"),
        ("sglang", "layer_id,expert_id,count\n0,1,2\n", Reading(steps=ONE, ranks=1), "leave --steps out"),
    ],
)
def test_options_that_a_format_has_no_use_for(
    tmp_path: Path, name: str, content: str, reading: Reading, words: str
) -> None:
    assert words in refusal(text(tmp_path, content, name), reading)


def test_megatron_ids_of_minus_one_are_none(tmp_path: Path) -> None:
    routes(tmp_path, [routed(0, [[-1, 1], [-1, -1]])])
    assert matrices(read_trace(tmp_path, Reading(experts_per_rank=1))) == [[[0, 1], [0, 0]]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (routed(0, [[0, 1]], num_tokens=5), "num_tokens is 5"),
        (routed(0, [[0, 1]], topk=3), "topk 3"),
        (routed(0, [[0, 1], [2]]), "1 to 2 numbers"),
        (routed(0, [[0, 8]]), "expert 8 is not one of 4"),
        (routed(0, [[0, -2]]), "expert -2 is negative: experts count from 0, and -1 is none; write the file anew"),
        (routed(0, [[0, 1.5]]), "holds 1.5"),
        (routed(0, [[0, None]]), "holds None"),
        (routed(7, [[0, 1]]), "rank 7 is not one of 2"),
        (routed(-1, [[0, 1]]), "rank is no whole number"),
        ({"top_indices": [[1]]}, "step is missing"),
        ({"step": 1, "layer": 0, "rank": 0, "x": "top_indices"}, "top_indices is missing"),
        ([1], "is not a record"),
    ],
)
def test_megatron_records_that_cannot_be(tmp_path: Path, value: Any, words: str) -> None:
    path = lines(tmp_path, [routed(0, [[0, 1]]), value])
    assert words in refusal(path, Reading(experts_per_rank=2, ranks=2, format="megatron"))


def test_megatron_needs_the_number_of_experts(tmp_path: Path) -> None:
    assert "give --experts-per-rank" in refusal(lines(tmp_path, [routed(0, [[0, 1]])]))


SPELLINGS = [
    '{"step":1,"layer":0,"rank":0,"num_tokens":2,"topk":2,"top_indices":[[0,1],[2,13]]}',
    '{"top_indices": [[0, 1], [2, 13]], "step": 1, "layer": 0, "rank": 0, "num_tokens": 2, "topk": 2}',
    '{"top_indices" : [ [0,1] , [2,13] ], "step": 1, "layer": 0, "rank": 0}',
    '{"a": "[[9]]", "top_indices": [[0, 1], [2, 13]], "probs": [[0.5, 0.5], [1, 0]], "step": 1, "layer": 0, "rank": 0}',
    '{"top_indices": [[0,\t1],[2, 13]], "step": 1, "layer": 0, "rank": 0}',
    '{"note": "top_indices", "top_indices": [[0,1],[2, 13]], "step": 1, "layer": 0, "rank": 0}',
]


@pytest.mark.parametrize("line", SPELLINGS)
def test_megatron_whatever_the_spelling(tmp_path: Path, line: str) -> None:
    trace = read_trace(text(tmp_path, line + "\n", "t.jsonl"), Reading(experts_per_rank=8, ranks=2))
    assert matrices(trace) == [[[3, 1], [0, 0]]]


@pytest.mark.parametrize(
    "indices",
    [
        "[[0, 1], [2 3]]",
        "[[0, 1] [2, 3]]",
        "[[0, 1], [2, 03]]",
        "[[0, 1], [2, -]]",
        "[[0, 1], [, 3]]",
        "[[0, 1], [2, 3],]",
    ],
)
def test_megatron_what_is_no_json_is_refused_by_the_fast_way_too(tmp_path: Path, indices: str) -> None:
    line = f'{{"step": 1, "layer": 0, "rank": 0, "top_indices": {indices}}}\n'
    assert "is not JSON" in refusal(text(tmp_path, line, "t.jsonl"), Reading(experts_per_rank=8, ranks=2))


def test_megatron_long_records_are_read_in_blocks(tmp_path: Path) -> None:
    """Longer than a block, with numbers of one to four digits and some -1; held against json."""
    drawn = np.random.default_rng(5).integers(-1, 2048, (100_000, 6))
    path = lines(tmp_path, [routed(1, drawn.tolist())])
    assert path.stat().st_size > 16 * 2**17
    (demand,) = matrices(read_trace(path, Reading(experts_per_rank=512, ranks=4)))
    assert demand[1] == np.bincount(drawn[drawn >= 0] // 512, minlength=4).tolist()
    assert demand[0] == [0] * 4


def test_reading_tokens_takes_less_than_three_times_their_file(tmp_path: Path) -> None:
    """Records as json writes them, one of which is most of the file; and the same tokens of SGLang and DeepEP."""
    tokens = np.random.default_rng(5).integers(0, 256, (150_000, 8))
    megatron = lines(
        tmp_path, [routed(0, tokens.tolist()), routed(1, tokens[:1000].tolist())], "router_trace_rank0.jsonl"
    )
    sglang = dump(tmp_path, 0, [record(1, 0, np.zeros((1, 256)), tokens[None])], physical=256)
    deepep = tmp_path / "layout_rank0.npz"
    np.savez(deepep, topk_idx=tokens.astype(np.int64), is_token_in_rank=np.ones((150_000, 2), dtype=bool))
    for path in (megatron, sglang, deepep):
        tracemalloc.start()
        try:
            with contextlib.suppress(InputError):  # DeepEP's has the row of one rank alone
                read_trace(path, Reading(ranks=2, experts_per_rank=128, token_copies="per-expert"))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert path.stat().st_size > 4_000_000
        assert peak < 3 * path.stat().st_size, path


# --- DeepEP ---

TOPK = np.array([[0, 1], [1, 2], [3, -1]])
"""4 experts, two a rank: tokens for rank 0: 2, for rank 1: 2; copies: 3 and 2."""


def layout(folder: Path, rank: int, **arrays: Any) -> Path:
    path = folder / f"layout_rank{rank}.npz"
    np.savez(path, **arrays)
    return path


FULL = {
    "topk_idx": TOPK,
    "num_tokens_per_rank": np.array([2, 2], dtype=np.int32),
    "num_tokens_per_expert": np.array([1, 2, 1, 1], dtype=np.int32),
    "is_token_in_rank": np.array([[1, 0], [1, 1], [0, 1]], dtype=bool),
}


def test_deepep(tmp_path: Path) -> None:
    layout(tmp_path, 0, **FULL)
    layout(tmp_path, 1, num_tokens_per_rank=np.array([5, 0]), num_tokens_per_expert=np.array([4, 3, 0, 0]))
    trace = read_trace(tmp_path)
    assert (trace.format, places(trace)) == ("deepep", ["step 0"])
    assert matrices(trace) == [[[2, 2], [5, 0]]]
    assert "counts once (as DeepEP sends it)" in said(trace)
    assert matrices(read_trace(tmp_path, Reading(token_copies="per-expert"))) == [[[3, 2], [7, 0]]]


def test_deepep_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, num_tokens_per_rank=np.array([[1, 2], [3, 4]]))
    assert matrices(read_trace(path)) == [[[1, 2], [3, 4]]]
    saved = save(tmp_path / "l.pt", [{"rank": r, "num_tokens_per_rank": np.array([r, 2])} for r in (0, 1)])
    assert (detect(saved), matrices(read_trace(saved))) == ("deepep", [[[0, 2], [1, 2]]])
    listed = lines(tmp_path, [{"rank": r, "num_tokens_per_rank": [r, 2]} for r in (0, 1)])
    assert (detect(listed), matrices(read_trace(listed))) == ("deepep", [[[0, 2], [1, 2]]])


@pytest.mark.parametrize("name", ["topk_idx", "num_tokens_per_rank", "is_token_in_rank"])
def test_deepep_each_way_of_saying_it_alone(tmp_path: Path, name: str) -> None:
    for rank in (0, 1):
        layout(tmp_path, rank, **{name: FULL[name]})
    assert matrices(read_trace(tmp_path, Reading(experts_per_rank=2))) == [[[2, 2], [2, 2]]]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_tokens_per_rank": np.array([2, 3])}, "num_tokens_per_rank and is_token_in_rank disagree"),
        ({"topk_idx": np.array([[0, 1]])}, "disagree on what each rank gets"),
        ({"topk_idx": np.array([[0, 9]])}, "expert 9 is not one of 4"),
        ({"topk_idx": np.array([[0.5, 1]])}, "is float64: whole numbers are read"),
        ({"num_tokens_per_rank": np.array([2, -2])}, "holds -2"),
        ({"num_tokens_per_rank": np.array([2, 2, 2])}, "rank has 3 ranks, but "),
        ({"num_tokens_per_rank": np.array([2, 2, 2])}, "layout_rank0.npz: is_token_in_rank has 2: save the layouts"),
        ({"is_token_in_rank": np.array([[2, 0]])}, "it is 0 or 1"),
    ],
)
def test_deepep_layouts_that_cannot_be(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    layout(tmp_path, 0, **{**FULL, **changed})
    layout(tmp_path, 1, **FULL)
    assert words in refusal(tmp_path)


def test_deepep_ranks_by_the_order_of_names_are_said(tmp_path: Path) -> None:
    for name, row in (("b", [3, 4]), ("a", [1, 2])):
        np.savez(tmp_path / f"{name}.npz", num_tokens_per_rank=np.array(row))
    trace = read_trace(tmp_path)
    assert matrices(trace) == [[[1, 2], [3, 4]]]
    assert "ranks are in the order of the names, from 0 for a.npz to 1 for b.npz" in said(trace)
    np.savez(tmp_path / "b.npz", rank=np.array(1), num_tokens_per_rank=np.array([3, 4]))
    assert "a.npz does not say its rank, but others do" in refusal(tmp_path)


def test_deepep_of_too_many_ranks(tmp_path: Path) -> None:
    """A shape of no rows costs nothing in the file, and 16 GiB where its columns were added up."""
    for name, columns in (("is_token_in_rank", 2**31 - 1), ("num_tokens_per_rank", 1001)):
        saved = np.zeros((0, columns) if name == "is_token_in_rank" else columns, dtype=np.int8)
        assert f"{name} has {columns} ranks: at most 1000" in refusal(layout(tmp_path, 0, **{name: saved}))


def test_deepep_booleans_of_json(tmp_path: Path) -> None:
    """As is_token_in_rank.tolist() gives them; a count is no boolean."""
    inside = {"is_token_in_rank": [[True, False], [True, True]]}
    path = lines(tmp_path, [{"rank": rank, **inside, "num_tokens_per_rank": [2, 1]} for rank in (0, 1)])
    assert matrices(read_trace(path)) == [[[2, 1], [2, 1]]]
    path = lines(tmp_path, [{"rank": rank, **inside, "num_tokens_per_rank": [2, True]} for rank in (0, 1)])
    assert "num_tokens_per_rank holds True, which is not a whole number" in refusal(path)


def test_deepep_a_layout_of_fewer_ranks(tmp_path: Path) -> None:
    """Its experts would not divide by them, which is not what is wrong."""
    counts = {"topk_idx": [[0, 3]], "num_tokens_per_expert": [1, 0, 0, 1]}
    good = {"num_tokens_per_rank": [1, 0, 0, 1], **counts}
    short = {"num_tokens_per_rank": [1, 0, 0], **counts}
    path = lines(tmp_path, [{"rank": 0, **good}, {"rank": 1, **short}])
    assert "line 2: num_tokens_per_rank has 3 ranks, but " in refusal(path)
    assert "line 1: num_tokens_per_rank has 4: save the layouts of one dispatch" in refusal(path)
    for rank, value in enumerate((short, good)):
        text(tmp_path, json.dumps(value), f"layout_rank{rank}.json")
    words = "layout_rank0.json: line 1 (of 2 files) has 3 ranks, by which its 4 experts do not divide: save the layout of one"
    assert words in refusal(tmp_path / "layout_rank*.json")


def test_deepep_without_layouts(tmp_path: Path) -> None:
    assert "holds no layout: save what get_dispatch_layout gives" in refusal(
        text(tmp_path, "[]"), Reading(format="deepep")
    )


def test_deepep_without_tokens_in_json(tmp_path: Path) -> None:
    none = {"topk_idx": [], "is_token_in_rank": [], "num_tokens_per_rank": [0, 0], "num_tokens_per_expert": [0, 0]}
    path = lines(tmp_path, [{"rank": 0, "num_tokens_per_rank": [1, 2]}, {"rank": 1, **none}])
    assert matrices(read_trace(path)) == [[[1, 2], [0, 0]]]


def test_deepep_one_rank_is_not_all(tmp_path: Path) -> None:
    assert "is the layout of one rank, one row of 2: give a folder" in refusal(layout(tmp_path, 0, **FULL))


# --- split sizes ---


def test_torch_split_sizes(tmp_path: Path) -> None:
    """in_0 = [1, 2], in_1 = [3, 4]; out_0 = [1, 3], out_1 = [2, 4]."""
    records = [
        {"rank": 0, "input_split_sizes": [1, 2], "output_split_sizes": [1, 3]},
        {"rank": 1, "input_split_sizes": [3, 4], "output_split_sizes": [2, 4]},
        {"rank": 0, "input_split_sizes": [0, 0]},
        {"rank": 1, "input_split_sizes": [9, 0]},
    ]
    path = lines(tmp_path, records)
    assert detect(path) == "splits"
    trace = read_trace(path)
    assert (places(trace), matrices(trace)) == (["step 0", "step 1"], [[[1, 2], [3, 4]], [[0, 0], [9, 0]]])
    records[1]["output_split_sizes"] = [5, 4]
    assert "rank 0 sends 2 to rank 1, which expects 5" in refusal(lines(tmp_path, records))


def test_one_is_no_plural(tmp_path: Path) -> None:
    records = [{"rank": rank, "in_split": row} for rank, row in ((0, [1, 2, 0]), (1, [3, 4, 0]), (0, []))]
    notes = said(read_trace(lines(tmp_path, records)))
    assert "1 call without split sizes, which sends evenly, is left out" in notes
    assert "rank 2 without a call for 1 of 1 demands: taken to send nothing there" in notes
    assert "has no all-to-all with split sizes" in refusal(
        text(tmp_path, '[{"comms": "all_reduce", "in_split": []}]', "other.json")
    )


def kineto(folder: Path, rank: int, *calls: tuple[str, str], name: str = "all_to_allv") -> Path:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "args": {"name": "python"}}]
    for number, (given, expected) in enumerate(calls):
        args = {"Collective name": name, "In split size": given, "Out split size": expected, "Group size": 2}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 10 * number, "args": args},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 10.5 * number, "args": args},
        ]
    about = {"backend": "nccl", "rank": rank, "world_size": 2}
    return text(
        folder, json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}), f"rank{rank}.json"
    )


def test_kineto(tmp_path: Path) -> None:
    kineto(tmp_path, 0, ("[1, 2]", "[1, 3]"), ("[]", "[]"), ("[7, 0]", "[7, 0]"))
    kineto(tmp_path, 1, ("[3, 4]", "[2, 4]"), ("[]", "[]"), ("[0, 7]", "[0, 7]"))
    trace = read_trace(tmp_path)
    assert (trace.format, matrices(trace)) == ("splits", [[[1, 2], [3, 4]], [[7, 0], [0, 7]]])
    assert "2 calls without split sizes, which send evenly, are left out" in said(trace)


def test_an_even_call_of_one_rank_is_refused(tmp_path: Path) -> None:
    """Left out of one rank alone it would pair that rank's next call with this one of the others."""
    kineto(tmp_path, 0, ("[1, 2]", "[1, 3]"), ("[7, 0]", "[7, 0]"))
    kineto(tmp_path, 1, ("[]", "[]"), ("[0, 7]", "[0, 7]"))
    assert "all-to-all 1 of rank 1 has no split sizes" in refusal(tmp_path)
    assert "but that of rank 0 has" in refusal(tmp_path)


def test_what_is_expected_of_a_rank_that_is_not_there(tmp_path: Path) -> None:
    records = [
        {"rank": 0, "in_split": [1, 2, 0], "out_split": [1, 3, 0]},
        {"rank": 1, "in_split": [3, 4, 0], "out_split": [2, 4, 0]},
    ]
    assert matrices(read_trace(lines(tmp_path, records))) == [[[1, 2, 0], [3, 4, 0], [0, 0, 0]]]
    records[0]["out_split"] = [1, 3, 5]
    assert "rank 0 expects 5 from rank 2, which has no call" in refusal(lines(tmp_path, records))


def test_split_sizes_by_the_order_of_names_are_said(tmp_path: Path) -> None:
    for name, row in (("b", [3, 4]), ("a", [1, 2])):
        text(tmp_path, json.dumps({"in_split": row}), f"{name}.json")
    trace = read_trace(tmp_path)
    assert matrices(trace) == [[[1, 2], [3, 4]]]
    assert "ranks are in the order of the names, from 0 for a.json to 1 for b.json" in said(trace)
    text(tmp_path, json.dumps({"rank": 1, "in_split": [3, 4]}), "b.json")
    assert "a.json does not say its rank, but others do" in refusal(tmp_path)


def test_kineto_that_was_cut(tmp_path: Path) -> None:
    path = kineto(tmp_path, 0, ("[1, 2, ...]", "[1]"))
    assert "was cut off (it ends in '...'): Kineto shortens long lists" in refusal(path)
    assert "no all-to-all" in refusal(kineto(tmp_path, 0, ("[1, 2]", "[1, 2]"), name="allreduce"))


def test_param_traces(tmp_path: Path) -> None:
    for rank, (given, expected) in enumerate((([1, 2], [1, 3]), ([3, 4], [2, 4]))):
        call = {"comms": "all_to_allv", "in_split": given, "out_split": expected, "dtype": "BFloat16", "world_size": 2}
        other = {"comms": "all_reduce", "in_msg_size": 8}
        text(tmp_path, json.dumps([other, call]), f"{rank}.json")
    assert matrices(read_trace(tmp_path)) == [[[1, 2], [3, 4]]]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([{"rank": 0, "in_split": [1, 2]}], "is of one rank, one row of 2"),
        ([{"rank": 0, "in_split": []}], "send evenly, and nothing says how much"),
        ([{"in_split": [1, 2]}], "does not say its rank"),
        ([{"rank": 5, "in_split": [1, 2]}], "rank 5 has calls of 2 split sizes"),
        ([{"rank": 0, "in_split": [1, 2]}, {"rank": 1, "in_split": [1]}], "1 to 2 split sizes"),
        ([{"rank": 0, "in_split": [1, -2]}], "-2: it must be 0 or more"),
        ([{"rank": 0, "in_split": [1, 2.5]}], "holds 2.5"),
        ([{"rank": 0, "in_split": [TOP, TOP]}], "2^63"),
        ([{"rank": 0, "in_split": "[1, 2"}], "is not JSON"),
        ([{"rank": 0, "in_split": '["1'}], "is not JSON (Unterminated string starting at column 2): write it anew"),
        ([{"rank": 0, "in_split": 5}], "whole numbers are read"),
        ([{"rank": 0, "comms": "all_to_allv"}], "has no split sizes"),
    ],
)
def test_split_sizes_that_cannot_be(tmp_path: Path, records: list[Any], words: str) -> None:
    assert words in refusal(lines(tmp_path, records), Reading(format="splits"))


# --- htsim ---

CM = """# comment
Nodes 3
Connections 3
Triggers 1
Failures 0
0->1 id 1 start 0 size 4096
0->2 id 2 start 1000 size 3000000000 send_done_trigger 1
2->1 id 3 trigger 1 size 64 prio 3
trigger id 1 oneshot
"""


def test_htsim(tmp_path: Path) -> None:
    path = text(tmp_path, CM, "x.cm")
    assert detect(path) == "htsim"
    trace = read_trace(path)
    assert (trace.unit, matrices(trace)) == ("bytes", [[[0, 4096, 3_000_000_000], [0, 0, 0], [0, 64, 0]]])
    assert "2 different starts and 1 connection with a trigger are taken as one demand" in said(trace)
    assert "1 size above 2^31 - 1" in said(trace)
    # 4096 B of payload are a packet of 4032 and one of 64.
    assert load_demand(path).wire_bytes[0, 1] == 4096 + 2 * 64
    assert load_demand(path, unit="wire-bytes").wire_bytes[0, 1] == 4096


def test_htsim_is_written_as_it_is_read(tmp_path: Path) -> None:
    demand = np.array([[0, 5, 0], [2**31 - 1, 0, 1], [0, 0, 0]])
    path = text(tmp_path, written("x.cm", demand), "x.cm")
    assert path.read_text().splitlines() == [
        "Nodes 3",
        "Connections 3",
        "0->1 id 1 start 0 size 5",
        "1->0 id 2 start 0 size 2147483647",
        "1->2 id 3 start 0 size 1",
    ]
    trace = read_trace(path)
    assert (matrices(trace), trace.notes) == ([demand.tolist()], ())
    with pytest.raises(InputError, match=r"rank 0 sends 2147483648 bytes to rank 1: htsim's reader stops at 2\^31 - 1"):
        written("x.cm", np.array([[0, 2**31], [0, 0]]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Nodes 2\nConnections 2\n0->1 id 1 start 0 size 5\n", "Connections says 2, but there are 1"),
        ("Nodes 2\n0->2 id 1 size 5\n", "node 2 is not one of 2"),
        ("Nodes 2\n0->1 id 1 start 0\n", "has no size"),
        ("Nodes 2\n0->1 id 1 start\n", "pairs of a name and a value"),
        ("Nodes 2\n0->1 size 1 colour 5\n", "pairs of a name and a value"),
        ("Nodes 2\n0->1 size -5\n", "size is '-5'"),
        ("Nodes 2\n0->1 size 1.5\n", "size is '1.5'"),
        (f"Nodes 2\n0->1 size {TOP}\n0->1 size 1\n", "2^63"),
        ("Nodes 2\nhello\n", "'hello' is not known"),
        ("Nodes 2\nNodes 2\n", "once"),
        ("Nodes 0\n", "0 nodes"),
        ("Nodes 9999\n", "9999 nodes"),
        ("Nodes x\n", "Nodes is 'x'"),
        ("0->1 size 5\n", "comes before Nodes"),
        ("# nothing\n", "has no Nodes"),
        ("Nodes 2\n\xff", "is not text"),
    ],
)
def test_htsim_that_cannot_be(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "x.cm"
    path.write_bytes(content.encode("latin-1"))
    assert words in refusal(path, Reading(format="htsim"))


# --- matrices ---


def test_npz_and_torch_matrices(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "m.npz", demand=np.array([[1, 2], [3, 4]]))
    assert (detect(tmp_path / "m.npz"), matrices(read_trace(tmp_path / "m.npz"))) == ("npz", [[[1, 2], [3, 4]]])
    saved = save(tmp_path / "m.pt", np.array([[1.5, 2], [3, 4]], dtype=np.float32))
    assert (detect(saved), matrices(read_trace(saved))) == ("torch", [[[1.5, 2], [3, 4]]])
    np.savez(tmp_path / "two.npz", a=np.eye(2), b=np.eye(2))
    assert "holds arrays a, b: save one matrix alone" in refusal(tmp_path / "two.npz")
    np.savez(tmp_path / "objects.npz", a=np.array([[None]], dtype=object))
    assert "holds object, not numbers" in refusal(tmp_path / "objects.npz")


def test_npz_that_unpacks_to_much_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros((1, 100 << 20), dtype=np.int8))
    assert path.stat().st_size < 2**20
    assert "over 100 times as much as it takes" in refusal(path)


def test_sequences_of_matrices(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.arange(2 * 3 * 2 * 2).reshape(2, 3, 2, 2))
    chosen = Reading(steps=Chosen.parse("1", "steps"), layers=Chosen.parse("1:3", "layers"))
    trace = read_trace(tmp_path / "s.npy", chosen)
    assert (places(trace), matrices(trace)) == (
        ["step 1 layer 1", "step 1 layer 2"],
        [[[16, 17], [18, 19]], [[20, 21], [22, 23]]],
    )
    np.save(tmp_path / "one.npy", np.eye(2))
    assert "is one matrix: leave --steps and --layers out" in refusal(tmp_path / "one.npy", chosen)
    np.save(tmp_path / "steps.npy", np.ones((2, 2, 2)))
    assert "has steps alone" in refusal(tmp_path / "steps.npy", chosen)


@pytest.mark.parametrize(
    ("reading", "option"), [(Reading(ranks=2), "--ranks"), (Reading(experts_per_rank=2), "--experts-per-rank")]
)
def test_a_matrix_needs_no_placement(tmp_path: Path, reading: Reading, option: str) -> None:
    assert f"leave {option} out" in refusal(text(tmp_path, "0,1\n1,0\n", "m.csv"), reading)


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"h0": [0, 2], "h1": [1, 0]}), path)
    assert (detect(path), matrices(read_trace(path))) == ("parquet", [[[0, 1], [2, 0]]])
    table = {"src": [0, 2, 0, 1], "dst": [1, 0, 1, 2], "tokens": [5, 6, 7, 8], "step": [0, 0, 0, 9]}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    trace = read_trace(path)
    assert (trace.unit, places(trace)) == ("tokens", ["step 0", "step 9"])
    assert matrices(trace) == [[[0, 12, 0], [0, 0, 0], [6, 0, 0]], [[0, 0, 0], [0, 0, 8], [0, 0, 0]]]
    assert "3 ranks, as the highest number says" in said(trace)
    assert len(matrices(read_trace(path, Reading(ranks=4)))[0]) == 4


def test_parquet_in_any_order_and_in_many_batches(tmp_path: Path) -> None:
    """300,000 rows of 6 steps and 5 layers, shuffled, each pair of ranks several times."""
    draw = np.random.default_rng(7)
    rows: dict[str, np.ndarray[Any, Any]] = {
        "step": draw.integers(0, 6, 300_000),
        "layer": draw.integers(10, 15, 300_000).astype(np.int16),
        "src": draw.integers(0, 12, 300_000),
        "dst": draw.integers(0, 12, 300_000),
        "bytes": draw.integers(0, 2**40, 300_000),
    }
    rows["src"][rows["step"] == 0] %= 3  # as many ranks as others have, though it shows fewer
    rows["dst"][rows["step"] == 0] %= 3
    wanted = np.zeros((6, 5, 12, 12), dtype=np.int64)
    np.add.at(wanted, (rows["step"], rows["layer"] - 10, rows["src"], rows["dst"]), rows["bytes"])
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "m.parquet", row_group_size=70_000)
    trace = read_trace(tmp_path / "m.parquet")
    assert places(trace) == [f"step {step} layer {layer}" for step in range(6) for layer in range(10, 15)]
    assert matrices(trace) == wanted.reshape(30, 12, 12).tolist()
    chosen = Reading(steps=Chosen.parse("5", "steps"), layers=Chosen.parse("11:13", "layers"))
    assert matrices(read_trace(tmp_path / "m.parquet", chosen)) == wanted[5, 1:3].tolist()


@pytest.mark.parametrize("largest", [255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1])
@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
def test_numbers_stay_what_they_are_in_as_few_bytes(tmp_path: Path, kind: str, largest: int) -> None:
    """The largest stands last, after rows of numbers that fit into a byte."""
    matrix = np.ones((400, 400), dtype=np.int64)
    matrix[-1, -1] = largest
    path = tmp_path / f"m.{kind}"
    if kind == "csv":
        np.savetxt(path, matrix, fmt="%d", delimiter=",")
    elif kind == "npz":
        np.savez(path, matrix)
    else:
        pyarrow.parquet.write_table(pyarrow.table({f"h{n}": matrix[:, n] for n in range(400)}), path)
    read = read_trace(path).matrix(0)
    assert (read == matrix).all()
    assert read.itemsize == next(size for size in (1, 2, 4, 8) if largest < 256**size)


@pytest.mark.parametrize("last", ["-1", "0.5", "1e300"])
def test_a_last_row_of_other_numbers(tmp_path: Path, last: str) -> None:
    """CSV, of which the rows before it are read as bytes."""
    rows = [["7"] * 20] * 19 + [[*["7"] * 19, last]]
    read = read_trace(text(tmp_path, "\n".join(",".join(row) for row in rows), "m.csv")).matrix(0)
    assert read.tolist() == [[float(cell) for cell in row] for row in rows]


def test_npz_of_numbers_above_the_largest(tmp_path: Path) -> None:
    matrix = np.ones((400, 400), dtype=np.uint64)
    matrix[0, 1] = 2**63
    np.savez(tmp_path / "m.npz", matrix)
    assert (read_trace(tmp_path / "m.npz").matrix(0) == matrix).all()


def test_reading_matrices_takes_less_than_three_times_their_file(tmp_path: Path) -> None:
    """One matrix of bytes, and steps and layers in which each token has eight experts; the larger ones are in a benchmark."""
    draw = np.random.default_rng(8)
    csv, npz, parquet = (tmp_path / f"m.{kind}" for kind in ("csv", "npz", "parquet"))
    np.savetxt(
        csv, 7168 * draw.multinomial(2_500_000, np.full(250_000, 4e-6)).reshape(500, 500), fmt="%d", delimiter=","
    )
    steps = draw.multinomial(512, draw.dirichlet(np.full(64, 3.0)), (10, 61, 64))
    np.savez_compressed(npz, demand=steps)
    names = ("step", "layer", "src", "dst")
    columns = dict(zip(names, (each.ravel() for each in np.indices(steps.shape)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table({**columns, "tokens": steps.ravel()}), parquet)
    for path, total in ((csv, 7168 * 2_500_000), (npz, steps.sum()), (parquet, steps.sum())):
        tracemalloc.start()
        try:
            trace = read_trace(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert sum(trace.matrix(number).sum() for number in range(len(trace))) == total
        assert path.stat().st_size > 1_000_000
        assert peak < 3 * path.stat().st_size, path


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"a": [1, 2]}, "is 2 x 1"),
        ({"a": ["x"]}, "is string, not numbers"),
        ({"a": [1, None], "b": [1, 2]}, "has empty cells"),
        ({"src": [0], "dst": [1]}, "has no amount"),
        ({"src": [0], "dst": [1], "bytes": [1], "tokens": [1]}, "has tokens and bytes"),
        ({"src": [-1], "dst": [1], "bytes": [1]}, "row 1: column src must hold whole numbers of 0 to 999"),
        ({"src": [0.5], "dst": [1], "bytes": [1]}, "column src must hold whole numbers"),
        ({"src": [0], "dst": [1], "bytes": [-1]}, "amounts of 0 or more"),
        ({"src": [0], "dst": [1], "bytes": [float("nan")]}, "finite amounts"),
        ({"src": [0, 0], "dst": [1, 1], "bytes": [TOP, TOP]}, "2^63"),
    ],
)
def test_parquet_that_cannot_be(tmp_path: Path, table: dict[str, Any], words: str) -> None:
    path = tmp_path / "m.parquet"
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    assert words in refusal(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "damaged Parquet" in refusal(path)


@pytest.mark.parametrize("wrong", [-1, float("nan"), None, 2**63])
@pytest.mark.parametrize("row", [0, 70_000])
def test_parquet_names_the_row(tmp_path: Path, row: int, wrong: Any) -> None:
    """Counted from 1 over all batches."""
    amounts: list[Any] = [1.0 if isinstance(wrong, float) else 1] * 100_000
    amounts[row] = wrong
    column = pyarrow.array(amounts, type=pyarrow.uint64() if wrong == 2**63 else None)
    path = tmp_path / "m.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"src": [0] * 100_000, "dst": [1] * 100_000, "tokens": column}), path, row_group_size=30_000
    )
    assert f"{path}: row {row + 1}: column" in refusal(path)


@pytest.mark.parametrize("names", [("src", "dst", "bytes", "step"), ("h0", "h1")])
def test_parquet_without_rows(tmp_path: Path, names: Sequence[str]) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({name: pyarrow.array([], pyarrow.int64()) for name in names}), tmp_path / "m"
    )
    assert "has columns but no rows: write a row" in refusal(tmp_path / "m")


def test_parquet_without_pyarrow_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(CannotRunError, match="needs pyarrow"):
        read_trace(path)


# --- what is what ---


def test_folders_and_patterns(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        text(tmp_path, "", f"router_trace_rank{number}.jsonl")
    text(tmp_path, "", "README")
    expected = [f"router_trace_rank{n}.jsonl" for n in (1, 2, 10)]
    assert [file.name for file in files_of(tmp_path)] == expected
    assert [file.name for file in files_of(tmp_path / "router_trace_rank*.jsonl")] == expected
    assert "matches no file" in refusal(tmp_path / "x*")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02",
            "before version 1.6, which is not read: load it in torch and save it again",
        ),
        (b"\x80\x04N.", "is a bare pickle, which is not read"),
        (b"\x1f\x8b\x08", "is compressed: gunzip it first"),
        (b'{"a": 1}', "is JSON of no format that is known"),
        (b"PK\x03\x04", "damaged zip file"),
    ],
)
def test_what_is_no_format(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "what"
    path.write_bytes(content)
    assert words in refusal(path)


def test_an_old_pickle_and_an_empty_zip(tmp_path: Path) -> None:
    for name in ("x.pt", "x.pth"):
        path = tmp_path / name
        path.write_bytes(b"(dp0\nVlogical_count\np1\n(lp2\nI1\nas.")
        assert "is no file of torch.save, which is a zip, but perhaps an old pickle: save it with torch" in refusal(
            path
        )
    np.savez(tmp_path / "none.npz")
    assert "is a zip file that holds no array" in refusal(tmp_path / "none.npz")


def test_a_format_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = text(tmp_path, "0,1\n1,0\n", "m.csv")
    for kind in ("npy", "npz", "parquet", "torch", "htsim", "sglang", "vllm", "megatron", "deepep", "splits"):
        refusal(path, Reading(format=kind, experts_per_rank=1, ranks=2) if kind == "megatron" else Reading(format=kind))
    with pytest.raises(InputError, match="format 'xls' is not known: use one of auto, csv, npy"):
        read_trace(path, Reading(format="xls"))


# --- units and directions ---


def test_tokens_need_their_size_and_have_no_other_unit(tmp_path: Path) -> None:
    path = statistics(tmp_path, [[[4, 4]]])
    with pytest.raises(InputError, match="needs the size of a token"):
        load_demands(path, reading=Reading(ranks=2))
    with pytest.raises(InputError, match="counts tokens, but the unit is bytes"):
        load_demands(path, unit="bytes", reading=Reading(ranks=2))
    demand = load_demand(path, token_bytes=4032, reading=Reading(ranks=2))
    assert demand.wire_bytes.tolist() == [[0, 2 * 4096], [2 * 4096, 0]]
    assert any("no source rows" in note for note in demand.notes)
    assert any("on the diagonal are local" in note for note in demand.notes)


def test_a_combine_is_the_transpose(tmp_path: Path) -> None:
    path = text(tmp_path, "0,1,2\n3,0,4\n5,6,0\n", "m.csv")
    back = load_demands(path, unit="tokens", token_bytes=4032, direction="combine", combine_token_bytes=8064)
    assert back[0].wire_bytes.tolist() == [[0, 3 * 8192, 5 * 8192], [8192, 0, 6 * 8192], [2 * 8192, 4 * 8192, 0]]
    both = load_demands(path, unit="tokens", token_bytes=4032, direction="both")
    assert [str(both.place(index)) for index in range(2)] == ["", "combine"]
    assert np.array_equal(both[0].wire_bytes.T, both[1].wire_bytes)
    with pytest.raises(InputError, match="goes with direction combine or both"):
        load_demands(path, unit="tokens", token_bytes=1, combine_token_bytes=1)


def test_a_demand_that_is_wrong_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([[[0, 1], [1, 0]], [[0, -1], [1, 0]]]))
    sequence = load_demands(tmp_path / "s.npy")
    assert sequence[0].total_bytes == 2 * 65
    with pytest.raises(InputError, match="step 1: row 1, column 2 is negative"):
        sequence.read()
