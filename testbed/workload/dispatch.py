"""Synthetic dispatch of a mixture-of-experts layer in the shape of DeepSeek-V3, and its combine.

DeepSeek-V3 (arXiv 2412.19437): 256 routed experts, 8 of them a token, hidden size 7168, dispatch in FP8, combine in BF16.
Its real gate is not public traffic: how popular experts are is a Zipf law here, or counts that are given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.errors import InputError

__all__ = ["Dispatch", "counts_of", "dispatch_tokens", "without_servers", "zipf_popularity"]


@dataclass(frozen=True)
class Dispatch:
    """What one layer sends."""

    hosts: int
    """GPUs, each with as many experts; or, where there are more GPUs than experts, each with a replica of one."""
    tokens_per_host: int
    top_k: int
    once_per_host: bool
    """A token whose experts share a GPU goes there once (as DeepEP sends it), or once for each of them."""
    seed: int


def zipf_popularity(experts: int, skew: float, seed: int) -> NDArray[np.float64]:
    """Weight of each expert: rank^-s, in an order that is random by ``seed``."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    return weights[np.random.Generator(np.random.PCG64(seed)).permutation(experts)]


def dispatch_tokens(popularity: NDArray[np.float64], given: Dispatch) -> NDArray[np.int64]:
    """Tokens that GPU i sends to GPU j, i = j included; shape hosts x hosts.

    Each token picks ``top_k`` different experts, one after the other by their weights among those that are left (the k largest
    of log weight + Gumbel noise: Kool, van Hoof, Welling 2019). Raises InputError where numbers do not fit.
    """
    experts, hosts = len(popularity), given.hosts
    if not 1 <= given.top_k <= np.count_nonzero(popularity):
        raise InputError(
            f"--top-k {given.top_k}: give 1 to {np.count_nonzero(popularity)}, as there are experts with any tokens"
        )
    if experts % hosts and hosts % experts:
        raise InputError(
            f"--hosts {hosts}: {experts} experts do not divide evenly; give a divisor or a multiple of them"
        )
    drawn = np.random.Generator(np.random.PCG64(np.random.SeedSequence([given.seed, 1])))
    with np.errstate(divide="ignore"):
        weights = np.log(popularity)
    demand = np.zeros((hosts, hosts), dtype=np.int64)
    for source in range(hosts):
        noise = drawn.gumbel(size=(given.tokens_per_host, experts))
        chosen = np.argpartition(-(weights + noise), given.top_k - 1, axis=1)[:, : given.top_k]
        if hosts <= experts:
            targets = chosen // (experts // hosts)
        else:
            # Every expert has as many replicas; a sender always uses the same of them.
            replicas = hosts // experts
            targets = chosen * replicas + source % replicas
        if given.once_per_host:
            targets.sort(axis=1)
            first = np.ones(targets.shape, dtype=bool)
            first[:, 1:] = targets[:, 1:] != targets[:, :-1]
            targets = targets[first]
        demand[source] = np.bincount(targets.ravel(), minlength=hosts)
    return demand


def without_servers(demand: NDArray[np.int64], hosts_per_server: int) -> NDArray[np.int64]:
    """The same without what stays inside a server, which does not cross the network."""
    server = np.arange(len(demand)) // hosts_per_server
    return np.where(server[:, None] == server[None, :], 0, demand)


def counts_of(file: Path, name: str) -> NDArray[np.float64]:
    """Tokens an expert, from JSON: a list of numbers, or under MODEL/DOMAIN/LAYER of data/olmoe/expert_counts.json.

    Raises InputError with what there is to choose from.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file} does not exist: check the path") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{file} is not JSON: give counts of tokens by expert") from None
    if isinstance(data, dict):
        data = _layer(file, data, name)
    elif name:
        raise InputError(f"{file} is a list, which has no {name}: leave --counts-of out")
    if not _are_counts(data):
        raise InputError(f"{file}: the counts are not a list of two or more numbers of 0 or more, with a sum above 0")
    return np.array(data, dtype=np.float64)


def _layer(file: Path, data: dict[str, Any], name: str) -> Any:
    known: dict[str, Any] = {}
    try:
        for model, of_model in data["models"].items():
            for domain, layers in of_model["expert_counts"].items():
                for layer, counts in zip(data["layers"], layers, strict=False):
                    known[f"{model}/{domain}/{layer}"] = counts
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{file} has no models with expert_counts: give a plain list of counts") from None
    if name not in known:
        raise InputError(f"{file}: --counts-of {name or '(nothing)'} is not there: give one of {', '.join(known)}")
    return known[name]


def _are_counts(data: Any) -> bool:
    return (
        isinstance(data, Sequence)
        and len(data) >= 2
        and all(isinstance(n, (int, float)) and not isinstance(n, bool) and 0 <= n < 2**62 for n in data)
        and sum(data) > 0
    )
