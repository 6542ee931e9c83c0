"""Synthetic dispatch in the shape of DeepSeek-V3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.main import main
from controller.errors import InputError
from testbed.workload.dispatch import Dispatch, counts_of, dispatch_tokens, without_servers, zipf_popularity


def given(hosts: int = 8, **others: Any) -> Dispatch:
    values = {"tokens_per_host": 500, "top_k": 1, "once_per_host": False, "seed": 3, **others}
    return Dispatch(hosts=hosts, **values)


@pytest.mark.parametrize("top_k", [1, 2, 4, 8])
def test_each_token_goes_to_k_different_experts(top_k: int) -> None:
    """One expert a GPU: a row sums to tokens x k, and no column gets a token twice."""
    demand = dispatch_tokens(np.ones(16), given(16, top_k=top_k))
    assert demand.sum(axis=1).tolist() == [500 * top_k] * 16
    assert demand.max() <= 500
    if top_k == 8:
        assert demand == pytest.approx(np.full((16, 16), 250), abs=60)  # 5 sigma of a binomial


def test_choices_follow_the_weights() -> None:
    """k = 1: expert e with probability w_e / sum; 100,000 draws, within five standard deviations."""
    weights = np.array([8.0, 4.0, 2.0, 2.0])
    demand = dispatch_tokens(weights, given(4, tokens_per_host=25_000))
    expected = 25_000 * weights / weights.sum()
    assert np.abs(demand - expected).max() < 5 * np.sqrt(expected.max())


def test_the_second_choice_is_among_those_left() -> None:
    """Weights 2, 1, 1: P(both of the light ones) = 2 x 1/4 x 1/3 = 1/6, in which expert 0 is left out."""
    demand = dispatch_tokens(np.array([2.0, 1.0, 1.0]), given(3, top_k=2, tokens_per_host=60_000))
    assert 1 - demand[:, 0] / 60_000 == pytest.approx(np.full(3, 1 / 6), abs=0.01)


def test_an_expert_without_weight_gets_nothing() -> None:
    demand = dispatch_tokens(np.array([1.0, 0.0, 1.0, 1.0]), given(4, top_k=3))
    assert demand.sum(axis=0).tolist() == [2000, 0, 2000, 2000]
    with pytest.raises(InputError, match="--top-k 4: give 1 to 3"):
        dispatch_tokens(np.array([1.0, 0.0, 1.0, 1.0]), given(4, top_k=4))


def test_a_token_whose_experts_share_a_gpu_goes_there_once() -> None:
    """All 16 experts of a token's 16, two a GPU: each GPU gets it once, or twice."""
    once = dispatch_tokens(np.ones(16), given(8, top_k=16, once_per_host=True))
    twice = dispatch_tokens(np.ones(16), given(8, top_k=16))
    assert (once == 500).all()
    assert (twice == 1000).all()


def test_more_gpus_than_experts_are_replicas() -> None:
    """4 experts on 8 GPUs: expert e on 2e and 2e + 1; even senders use the first, odd ones the second."""
    demand = dispatch_tokens(np.ones(4), given(8, top_k=4))
    for source in range(8):
        assert np.flatnonzero(demand[source]).tolist() == [source % 2 + 2 * expert for expert in range(4)]


def test_it_repeats_by_its_seed() -> None:
    first, again, other = (dispatch_tokens(np.ones(8), given(seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_popularity_is_a_zipf_law_in_a_random_order() -> None:
    weights = zipf_popularity(256, 0.5, 7)
    assert sorted(weights, reverse=True) == pytest.approx([rank**-0.5 for rank in range(1, 257)])
    assert not np.array_equal(weights, zipf_popularity(256, 0.5, 8))


def test_traffic_inside_a_server_is_left_out() -> None:
    demand = without_servers(np.ones((5, 5), dtype=np.int64), 2)
    assert demand.sum(axis=1).tolist() == [3, 3, 3, 3, 4]
    assert not demand.diagonal().any()


def test_hosts_must_divide_the_experts() -> None:
    with pytest.raises(InputError, match="--hosts 6: 16 experts do not divide evenly"):
        dispatch_tokens(np.ones(16), given(6))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dispatch in FP8, combine in BF16: twice the bytes, the other way round."""
    out, back = tmp_path / "d.csv", tmp_path / "c.csv"
    words = f"workload deepseek --hosts 16 --tokens 64 --out {out} --combine-out {back}"
    assert main(words.split()) == 0
    dispatch, combine = (np.loadtxt(file, delimiter=",", dtype=np.int64) for file in (out, back))
    assert np.array_equal(combine, 2 * dispatch.T)
    assert not (dispatch % 7168).any()
    assert not dispatch[:8, :8].any()
    assert dispatch[:8, 8:].any()
    assert "payload bytes; use it with --unit bytes" in capsys.readouterr().out


COUNTS = {"layers": [0, 7], "models": {"M": {"expert_counts": {"c4": [[1, 2, 3, 4], [4, 3, 2, 1]]}}}}


def test_counts(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    file.write_text(json.dumps(COUNTS))
    assert counts_of(file, "M/c4/7").tolist() == [4, 3, 2, 1]
    file.write_text("[5, 6]")
    assert counts_of(file, "").tolist() == [5, 6]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (json.dumps(COUNTS), "", r"--counts-of \(nothing\) is not there: give one of M/c4/0, M/c4/7"),
        (json.dumps(COUNTS), "M/c4/1", "--counts-of M/c4/1 is not there"),
        ("[1, 2]", "M/c4/1", "is a list, which has no M/c4/1"),
        ("[1]", "", "the counts are not a list of two or more numbers"),
        ("[0, 0]", "", "the counts are not a list"),
        ("[1, -1]", "", "the counts are not a list"),
        ("[1, true]", "", "the counts are not a list"),
        ("[1, NaN]", "", "the counts are not a list"),
        ('{"a": 1}', "", "has no models with expert_counts"),
        ("{", "", "is not JSON"),
        ("[" * 100_000, "", "is not JSON"),
    ],
)
def test_bad_counts(tmp_path: Path, text: str, name: str, words: str) -> None:
    file = tmp_path / "counts.json"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        counts_of(file, name)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"--hosts": "1"}, "--hosts 1: give 2 to 1000"),
        ({"--tokens": "0"}, "--tokens 0: give 1"),
        ({"--top-k": "300"}, "--top-k 300: give 1 to 256"),
        ({"--s": "-1"}, "--s -1: give 0 to 10"),
        ({"--s": "nan"}, "--s nan: give 0 to 10"),
        ({"--out": "x.npy"}, "--out x.npy: the matrix is written as CSV"),
        ({"--combine-out": "x.npy"}, "--combine-out x.npy: the matrix is written as CSV"),
        ({"--combine-out": "d.csv"}, "--combine-out d.csv is the file of --out: give another name"),
        ({"--counts-of": "c4"}, "--counts-of c4: give the file with --counts"),
        ({"--counts": "none.json"}, "none.json does not exist"),
        ({"--tokens": "16000000"}, "would take an hour to draw"),
        ({"--out": "none/x.csv"}, "none/x.csv cannot be written"),
    ],
)
def test_bad_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"--hosts": "16", "--tokens": "8", "--out": "d.csv", **changed}
    code = main(["workload", "deepseek", *(word for pair in options.items() for word in pair)])
    said = capsys.readouterr().err
    assert code in (1, 2)
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "d.csv").exists()
