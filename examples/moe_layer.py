"""A small mixture-of-experts layer on PyTorch's gloo: one expert a rank, dispatch and combine by all_to_all_single.

    incastfree exec examples/moe.toml --out results/moe -- /usr/bin/python3 examples/moe_layer.py --hook

It knows nothing of incastfree but in two places: with --hook the rates of its NIC follow the split sizes, and it notes how
long its all-to-alls took where $INCASTFREE_SPANS says. Under torchrun it runs as well, without either.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist


class MoeLayer(torch.nn.Module):
    """Top-k gate, dispatch to the experts' ranks, a feed-forward expert, combine."""

    def __init__(self, hidden: int, top_k: int, skew: float, *, hook: bool, together: bool) -> None:
        super().__init__()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.top_k, self.hook, self.together = top_k, hook, together
        self.gate = torch.nn.Linear(hidden, self.ranks)
        # A gate that has been trained likes some experts more than others: here by a Zipf law.
        torch.nn.init.zeros_(self.gate.weight)
        with torch.no_grad():
            self.gate.bias.copy_(-skew * torch.log(torch.arange(1, self.ranks + 1)))
        self.expert = torch.nn.Sequential(torch.nn.Linear(hidden, 64), torch.nn.ReLU(), torch.nn.Linear(64, hidden))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens x hidden to the same."""
        noise = -torch.log(-torch.log(torch.rand(len(tokens), self.ranks)))  # Gumbel: a draw without replacement
        weights, experts = (self.gate(tokens) + noise).topk(self.top_k, dim=1)
        weights = weights.softmax(dim=1)
        order = experts.flatten().argsort(stable=True)
        row = torch.bincount(experts.flatten(), minlength=self.ranks)
        gathered = [torch.empty_like(row) for _ in range(self.ranks)]
        dist.all_gather(gathered, row)
        counts = torch.stack(gathered)

        source = order // self.top_k
        received = self._exchange("dispatch", tokens[source], counts)
        answered = self._exchange("combine", self.expert(received), counts.T)
        result = torch.zeros_like(tokens)
        result.index_add_(0, source, answered * weights.flatten()[order, None])
        return result

    def _exchange(self, name: str, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Sends counts[r, s] rows from every rank r to every rank s."""
        to, of = counts[self.rank].tolist(), counts[:, self.rank].tolist()
        output = rows.new_empty(sum(of), rows.shape[1])
        rows = rows.contiguous()
        if self.together:
            start = torch.tensor([time.monotonic_ns() + 10**9])
            dist.broadcast(start, 0)
            time.sleep((int(start) - time.monotonic_ns()) / 1e9)
        begin_ns = time.monotonic_ns()
        if self.hook:
            from controller import hook

            hook.all_to_all_single(output, rows, of, to, counts=counts)
        else:
            dist.all_to_all_single(output, rows, of, to)
        note(name, begin_ns, [count * rows.shape[1] * rows.element_size() for count in to])
        return output


def note(name: str, begin_ns: int, sent_bytes: list[int]) -> None:
    """A line for incastfree: begin, end, and the payload to each rank."""
    file = os.environ.get("INCASTFREE_SPANS")
    if file:
        with open(file, "a", encoding="ascii") as spans:
            print(name, begin_ns, time.monotonic_ns(), *sent_bytes, file=spans)


def options() -> Any:
    """Of the command line."""
    parser = argparse.ArgumentParser(description="a small MoE layer on gloo")
    parser.add_argument("--hook", action="store_true", help="write this rank's rates before each all-to-all")
    parser.add_argument(
        "--together", action="store_true", help="ranks begin an all-to-all at one time, by clocks that agree: exec's do"
    )
    parser.add_argument("--tokens", type=int, default=256, help="of each rank")
    parser.add_argument("--hidden", type=int, default=2048, help="elements of a token, 4 bytes each")
    parser.add_argument("--top-k", type=int, default=2, help="experts of a token")
    parser.add_argument("--skew", type=float, default=1.0, help="exponent of the experts' popularity")
    parser.add_argument("--steps", type=int, default=2, help="how often the layer runs")
    return parser.parse_args()


def main() -> None:
    """One process of torchrun, or of incastfree exec."""
    given = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layer = MoeLayer(given.hidden, given.top_k, given.skew, hook=given.hook, together=given.together)
    with torch.no_grad():
        for _ in range(given.steps):
            dist.barrier()
            result = layer(torch.randn(given.tokens, given.hidden))
    print(f"rank {dist.get_rank()}: mean {result.mean().item():.6f}", flush=True)
    dist.destroy_process_group()  # without it the teardown hangs


if __name__ == "__main__":
    main()
