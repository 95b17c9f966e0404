"""A vLLM plug-in for MoE data parallelism with expert parallelism on its CPU build 0.32.0, which has two gaps there.

Its CPU communicator has no `all_gatherv` and `reduce_scatterv`, which its only MoE dispatcher on CPU calls; here they
are gloo's all_gather, padded where ranks differ in rows, and all_reduce with a slice. And its CPU experts ignore
`expert_map`, so that local weights are indexed by global ids: a crash on rank 1, a wrong sum on rank 0. Here the
pairs of local experts are compacted, computed with one expert a row, and summed back by token.

Both repairs cost time that a tuned engine would not spend. Use with --enforce-eager: sizes differ from step to step.
"""

# Shapes: S tokens, H hidden, K experts per token, P pairs of a token and a local expert.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def register() -> None:
    """Entry point `vllm.general_plugins`; vLLM calls it in each of its processes, at times more than once."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts  # noqa: PLC0415

    if CpuCommunicator.all_gatherv is all_gatherv:
        return
    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv
    CPUUnquantizedExperts.apply = of_local_experts(CPUUnquantizedExperts.apply)


def all_gatherv(
    self: Any, rows: torch.Tensor | list[torch.Tensor], dim: int = 0, sizes: list[int] | None = None
) -> torch.Tensor | list[torch.Tensor]:
    """Rows of all ranks, in the order of ranks; rank i has sizes[i] of them, all as many if `sizes` is None."""
    assert dim == 0
    if isinstance(rows, list):
        return [gather(each, sizes or self.world_size * [len(each)], self.cpu_group) for each in rows]
    return gather(rows, sizes or self.world_size * [len(rows)], self.cpu_group)


def gather(rows: torch.Tensor, sizes: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """gloo gathers equal shapes only, so all are as long as the longest."""
    longest = max(sizes)
    if len(rows) < longest:
        rows = torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])
    received = [torch.empty_like(rows) for _ in sizes]
    dist.all_gather(received, rows.contiguous(), group=group)
    return torch.cat([each[:size] for each, size in zip(received, sizes, strict=True)])


def reduce_scatterv(self: Any, rows: torch.Tensor, dim: int = 0, sizes: list[int] | None = None) -> torch.Tensor:
    """This rank's rows of the sum over ranks."""
    assert dim == 0
    sums = rows.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(sums, group=self.cpu_group)
    sizes = sizes or self.world_size * [len(rows) // self.world_size]
    return sums.split(sizes)[self.rank_in_group].contiguous()


def of_local_experts(apply: Callable[..., None]) -> Callable[..., None]:
    """`apply` for the pairs whose expert is local; unchanged where all experts are."""

    def apply_local(self: Any, **call: Any) -> None:
        expert_map, output_SH = call["expert_map"], call["output"]
        if expert_map is None:
            apply(self, **call)
            return
        output_SH.zero_()
        local_SK = expert_map[call["topk_ids"].long()]
        token_P, choice_P = (local_SK >= 0).nonzero(as_tuple=True)
        if len(token_P):
            hidden_PH = call["hidden_states"][token_P]
            output_PH = torch.empty_like(hidden_PH)
            call |= {
                "output": output_PH,
                "hidden_states": hidden_PH,
                "topk_weights": call["topk_weights"][token_P, choice_P, None],
                "topk_ids": local_SK[token_P, choice_P, None].to(call["topk_ids"].dtype),
                "expert_map": None,
            }
            apply(self, **call)
            output_SH.index_add_(0, token_P, output_PH)

    return apply_local
