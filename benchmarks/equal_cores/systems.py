"""What is compared: one model, two cores, the same kernels; asynchronous devices, or policies of collocated workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equal_cores.devices import Attention, Fleet, Lockstep, MoE, Place
from equal_cores.feed import AsyncFeed, Feed, SyncFeed

from asap_ray.config import ServeConfig
from asap_ray.models.random_checkpoint import Sizes, demo
from asap_ray.scheduler.baselines import LockstepScheduler, Strong, chunked, chunked_per_group, default, strong
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.spec import ParallelSpec, PrefillSpec

MODEL: Final = demo() | Sizes(  # type: ignore[typeddict-item]
    num_layers=8, num_experts=16, moe_intermediate=512, vocab_size=32000, max_position_embeddings=16384
)
"""138.7 M parameters, 39 M at work on a token."""

MAX_TOKENS: Final = 4096  # the longest prompt
NUM_WORKERS: Final = 2  # D = E = D' = E'
UNBOUNDED: Final = 1 << 40
ASAP: Final = "asap"

SQUARE: Final = 1.0 / 5000.0
"""A prompt of s tokens is s + s^2 / 5000 of work: 61 MFLOP a token, 8 KFLOP a causal pair of a layer (8 layers),
and attention at about two thirds of a matrix product's speed."""


@dataclass(frozen=True, slots=True)
class System:
    """Running processes, and a fresh policy over them for every load."""

    fleet: Fleet
    feed: Callable[[], Feed]


Policy = Callable[[], LockstepScheduler]
Limits = tuple[int, int]
"""inflection_tokens and solo_tokens."""


def work(past_tokens: int, num_tokens: int) -> float:
    """Compute time of a piece of a prompt, in tokens of a short one (2.2.1)."""
    return num_tokens + SQUARE * num_tokens * (2 * past_tokens + num_tokens)


def _strong(budget_tokens: int, overlap_tokens: int, delay_s: float) -> Policy:
    settings = Strong(
        budget_tokens=budget_tokens, chunk_tokens=budget_tokens, overlap_tokens=overlap_tokens, delay_s=delay_s
    )
    return lambda: strong(NUM_WORKERS, settings, work)


def _default(budget_tokens: int) -> Policy:
    return lambda: default(NUM_WORKERS, budget_tokens)


def _chunked(budget_tokens: int) -> Policy:
    return lambda: chunked(NUM_WORKERS, budget_tokens, budget_tokens)


BEST_LIMITS: Final = (512, 2048)
BEST: Final[Mapping[str, Policy]] = {
    "default": _default(1024),
    "chunked": _chunked(1024),
    "strong": _strong(1024, UNBOUNDED, 0.0),
}
"""The best of the candidates, by `--sweep` (docs/async_vs_sync.md)."""

LIMITS: Final[Mapping[str, Limits]] = {
    f"{ASAP} {inflection} {solo}": (inflection, solo)
    for inflection, solo in ((256, 2048), (512, 1024), (512, 2048), (512, 4096), (1024, 2048))
}
CANDIDATES: Final[Mapping[str, Policy]] = {
    **{f"default {budget}": _default(budget) for budget in (512, 1024, 2048, 4096)},
    **{f"chunked {budget}": _chunked(budget) for budget in (512, 1024, 2048)},
    "chunked 1024, queue a group": lambda: chunked_per_group(NUM_WORKERS, 1024, 1024),
    **{f"strong {budget}": _strong(budget, UNBOUNDED, 0.0) for budget in (512, 1024, 2048)},
    "strong 1024, overlap": _strong(1024, 1024, 0.0),
    "strong 2048, overlap": _strong(2048, 1024, 0.0),
    "strong 1024, delay 20 ms": _strong(1024, UNBOUNDED, 0.020),
}


@contextmanager
def running(
    model: Path, cores: tuple[int, int], limits: Mapping[str, Limits], policies: Mapping[str, Policy]
) -> Iterator[dict[str, System]]:
    """Both kinds of processes, started once, and every system over them; whoever is not asked sleeps."""
    asynchronous = Fleet(
        _config(model, 2 * MAX_TOKENS),
        [Place(kind, index, None) for kind in (Attention, MoE) for index in range(NUM_WORKERS)],
    )
    try:
        synchronous = Fleet(
            _config(model, 8 * MAX_TOKENS), [Place(Lockstep, index, core) for index, core in enumerate(cores)]
        )
        try:
            systems = {name: System(asynchronous, _async_feed(asynchronous, each)) for name, each in limits.items()}
            yield systems | {
                name: System(synchronous, _sync_feed(synchronous, each)) for name, each in policies.items()
            }
        finally:
            synchronous.stop()
    finally:
        asynchronous.stop()


def _config(model: Path, max_tokens: int) -> ServeConfig:
    """D = E = 2, one thread a process; what is in flight together has room for `max_tokens`."""
    return ServeConfig(
        model=str(model.resolve()),
        parallel=ParallelSpec(dp_groups=NUM_WORKERS, tp=1, moe_devices=NUM_WORKERS),
        prefill=PrefillSpec(max_tokens=max_tokens, solo_tokens=max_tokens // 2, inflection_tokens=1),
    )


def _async_feed(fleet: Fleet, limits: Limits) -> Callable[[], Feed]:
    inflection_tokens, solo_tokens = limits
    prefill = PrefillSpec(
        max_tokens=2 * MAX_TOKENS, solo_tokens=solo_tokens, inflection_tokens=inflection_tokens, max_wait_s=0.0
    )
    return lambda: AsyncFeed(fleet.pipes, DualBatchScheduler(prefill, NUM_WORKERS, UNBOUNDED, UNBOUNDED))


def _sync_feed(fleet: Fleet, policy: Policy) -> Callable[[], Feed]:
    return lambda: SyncFeed(fleet.pipes, policy())
