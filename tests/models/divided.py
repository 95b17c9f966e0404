"""An undivided run of a model divided over threads: T attention ranks, and MoE devices called in turn."""

# Shapes: S rows of one rank, H hidden, K experts per token, R (row, expert) pairs of a device.

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request, Sampling, Token
from asap_ray.models.decoder import Decoder
from asap_ray.models.model import Model
from asap_ray.protocol import Collective, MoEStage, Routed

torch.set_num_threads(1)


class ThreadCollective:
    """A `Collective` of threads that meet at a barrier and read each other's rows."""

    def __init__(self, rank: int, boards: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(boards)
        self._boards, self._barrier = boards, barrier

    def _exchange(self, own: Any) -> list[Any]:
        self._boards[self.rank] = own
        self._barrier.wait()
        everyones = list(self._boards)
        self._barrier.wait()
        return everyones

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of all threads."""
        return torch.cat(self._exchange(rows.clone()))

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """This thread's part of the sum; a copy, since the threads share memory."""
        return sum(self._exchange(rows.clone())).chunk(self.size)[self.rank].clone()

    def broadcast(self, message: bytes | None) -> bytes:
        """The message of thread 0."""
        return self._exchange(message)[0]


def run_experts(stages: list[tuple[range, MoEStage]], layer: int, routed: Routed) -> torch.Tensor:
    """What dispatch, the MoE devices and combine do together: the weighted sum over experts, [S, H]."""
    device = routed.hidden_SH.device
    routed = Routed(routed.hidden_SH.cpu(), routed.expert_ids_SK.cpu(), routed.weights_SK.cpu())
    sums_SH = torch.zeros_like(routed.hidden_SH, dtype=torch.float32)
    for experts, stage in stages:
        row_idx_R, choice_R = (
            ((routed.expert_ids_SK >= experts.start) & (routed.expert_ids_SK < experts.stop)).nonzero().T
        )
        local_R = routed.expert_ids_SK[row_idx_R, choice_R] - experts.start
        order_R = local_R.argsort(stable=True)
        row_idx_R, choice_R = row_idx_R[order_R], choice_R[order_R]
        num_rows_E = local_R.bincount(minlength=len(experts)).int()
        results_RH = drive(stage.super_kernel(layer, routed.hidden_SH[row_idx_R], num_rows_E))
        sums_SH.index_add_(0, row_idx_R, results_RH.float() * routed.weights_SK[row_idx_R, choice_R, None])
    return sums_SH.to(routed.hidden_SH.dtype).to(device)


@dataclass
class Outcome:
    """What one rank made of a batch: logits of each pass, and the tokens in order."""

    logits: list[torch.Tensor] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)  # after each MoE layer of each pass, this rank's rows
    tokens: list[Token] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # dispatched by this rank, per pass


Experts = list[tuple[range, MoEStage]]


def turns(stage: Decoder, experts: Experts, batch: Batch, outcome: Outcome) -> Iterator[None]:
    """The attention loop of one rank without an engine; each step is one layer of one pass, or the end of one."""
    state = drive(stage.start(batch))
    while state is not None:
        expert_out = None
        for layer in range(stage.num_layers):
            routed = drive(stage.attend(state, layer, expert_out))
            yield
            expert_out = run_experts(experts, layer, routed)
            outcome.hidden.append(state.residual_RH[: state.num_rows] + expert_out)
        finished = drive(stage.finish(state, expert_out))
        is_last = finished.tokens and finished.next_state is None
        outcome.logits.append(stage.logits(state).cpu() if is_last else torch.empty(0))
        outcome.rows.append(len(routed.hidden_SH))
        outcome.tokens += finished.tokens
        state = finished.next_state
        yield


def run_rank(stage: Decoder, experts: Experts, batches: Sequence[Batch]) -> Outcome:
    """One batch after the other."""
    outcome = Outcome()
    for batch in batches:
        for _ in turns(stage, experts, batch, outcome):
            pass
    return outcome


def run_divided(
    model: Model,
    *batches: Batch,
    tp: int = 1,
    moe_devices: int = 1,
    dtype: torch.dtype = torch.float32,
    run: Callable[[Decoder, Experts, Sequence[Batch]], Outcome] = run_rank,
    stage_of: Callable[[Model, Collective, torch.dtype], Decoder] = Model.attention_stage,
) -> list[Outcome]:
    """Run batches on `tp` threads and `moe_devices` uneven shares of the experts; every rank's outcome."""
    num_experts = model.spec.num_experts
    shares = [range(e * num_experts // moe_devices, (e + 1) * num_experts // moe_devices) for e in range(moe_devices)]
    experts = [(share, model.expert_stage(share, dtype)) for share in shares]
    if tp == 1:
        return [run(stage_of(model, SoloCollective(), dtype), experts, batches)]
    boards, barrier = [None] * tp, threading.Barrier(tp)
    outcomes: list[Any] = [None] * tp

    def work(rank: int) -> None:
        try:
            stage = stage_of(model, ThreadCollective(rank, boards, barrier), dtype)
            outcomes[rank] = run(stage, experts, batches)
        except BaseException as error:
            outcomes[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(tp)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in sorted(outcomes, key=lambda o: isinstance(o, threading.BrokenBarrierError)):
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def batch_of(prompts: list[list[int]], **sampling: Any) -> Batch:
    """One request a prompt, named by its position."""
    return Batch(
        tuple(
            Request(
                request_id=str(idx),
                num_tokens=len(prompt),
                arrival_s=0.0,
                token_ids=torch.tensor(prompt, dtype=torch.int32).numpy().tobytes(),
                sampling=Sampling(**sampling),
            )
            for idx, prompt in enumerate(prompts)
        )
    )


def random_prompts(lengths: list[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Prompts of uniformly random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]
