"""Writes docs/samples: small dumps of SGLang, vLLM and Megatron, as docs/formats.md shows them. The same every time."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.torch_files import save  # noqa: E402

EXPERTS, RANKS, TOP_K, TOKENS, STEPS, LAYERS = 32, 8, 4, 64, 4, 3


def chosen(draw: random.Random, layer: int) -> list[int]:
    """Different experts of a token; which are liked differs by layer."""
    weights = [1 / (1 + (expert * 7 + layer * 11) % EXPERTS) for expert in range(EXPERTS)]
    picked: list[int] = []
    while len(picked) < TOP_K:
        (expert,) = draw.choices(range(EXPERTS), weights)
        if expert not in picked:
            picked.append(expert)
    return picked


def main() -> None:
    """All three from the same routing: of each step, layer, rank and token."""
    draw = random.Random(7)
    routing = {
        (step, layer, rank): [chosen(draw, layer) for _ in range(TOKENS)]
        for step in range(STEPS)
        for layer in range(1, LAYERS)  # layer 0 is dense
        for rank in range(RANKS)
    }
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "samples"
    (folder / "megatron").mkdir(parents=True, exist_ok=True)
    counts = np.zeros((STEPS, LAYERS, EXPERTS), dtype=np.int32)
    for (step, layer, _), tokens in routing.items():
        np.add.at(counts[step, layer], np.array(tokens).ravel(), 1)
    save(folder / "sglang.pt", {"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None})

    spare = RANKS  # one redundant expert a rank
    p2l = [expert for rank in range(RANKS) for expert in (*range(rank * 4, rank * 4 + 4), (rank * 4 + 4) % EXPERTS)]
    meta = {
        "record_type": "eplb_load_meta",
        "version": 1,
        "model": "sample",
        "num_ranks": RANKS,
        "num_groups": 1,
        "num_nodes": 1,
    }
    lines = [{**meta, "num_layers": LAYERS - 1, "num_redundant_experts": spare}]
    for step in range(STEPS):
        loads = []
        for layer in range(1, LAYERS):
            load, seen = [], [0] * EXPERTS
            for expert in p2l:
                replicas = p2l.count(expert)
                whole = int(counts[step, layer, expert])
                load.append(whole // replicas + (seen[expert] < whole % replicas))
                seen[expert] += 1
            loads.append(load)
        lines.append(
            {
                "record_type": "eplb_load_stats",
                "version": 1,
                "step": step,
                "expert_load": loads,
                "p2l_map": [p2l] * (LAYERS - 1),
            }
        )
    (folder / "vllm.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    for rank in range(RANKS):
        records = [
            {
                **{
                    "step": step,
                    "stage": 0,
                    "block": 0,
                    "layer": layer,
                    "rank": rank,
                    "num_tokens": TOKENS,
                    "topk": TOP_K,
                },
                "top_indices": routing[step, layer, rank],
            }
            for step in range(STEPS)
            for layer in range(1, LAYERS)
        ]
        text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        (folder / "megatron" / f"router_trace_rank{rank}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
