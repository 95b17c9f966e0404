"""What is compared: one model, two cores, the same kernels; asynchronous devices, or policies of collocated workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equal_cores.devices import Attention, Fleet, Lockstep, MoE, Place
from equal_cores.feed import AsyncFeed, Feed, SyncFeed

from asap_ray.config import ServeConfig
from asap_ray.models.random_checkpoint import demo
from asap_ray.models.random_config import Sizes
from asap_ray.scheduler.baselines import LockstepScheduler, Strong, chunked, chunked_per_group, default, strong
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.scheduler.policies import policy_of
from asap_ray.spec import ParallelSpec, PrefillSpec

MODEL: Final = demo() | Sizes(  # type: ignore[typeddict-item]
    num_layers=8, num_experts=16, moe_intermediate=512, vocab_size=32000, max_position_embeddings=16384
)
"""138.7 M parameters, 39 M at work on a token."""

MAX_TOKENS: Final = 4096  # the longest prompt
NUM_WORKERS: Final = 2  # D = E = D' = E'
UNBOUNDED: Final = 1 << 40
OURS: Final = "paper"
"""What an instance serves with by default."""

SQUARE: Final = 1.0 / 5000.0
"""A prompt of s tokens is s + s^2 / 5000 of work: 61 MFLOP a token, 8 KFLOP a causal pair of a layer (8 layers),
and attention at about two thirds of a matrix product's speed."""


@dataclass(frozen=True, slots=True)
class System:
    """Running processes, and a fresh policy over them for every load."""

    fleet: Fleet
    feed: Callable[[], Feed]


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """A policy of the asynchronous engine, and its limits."""

    policy: str
    inflection_tokens: int
    solo_tokens: int


@dataclass(frozen=True, slots=True)
class Synchronous:
    """A policy of the workers in lockstep."""

    policy: Callable[[], LockstepScheduler]
    is_pinned: bool = True  # each worker to a core of its own


Setting = Asynchronous | Synchronous


def work(past_tokens: int, num_tokens: int) -> float:
    """Compute time of a piece of a prompt, in tokens of a short one (2.2.1)."""
    return num_tokens + SQUARE * num_tokens * (2 * past_tokens + num_tokens)


def _default(budget_tokens: int) -> Synchronous:
    return Synchronous(lambda: default(NUM_WORKERS, budget_tokens))


def _chunked(budget_tokens: int) -> Synchronous:
    return Synchronous(lambda: chunked(NUM_WORKERS, budget_tokens, budget_tokens))


def _queue_a_group(budget_tokens: int) -> Synchronous:
    return Synchronous(lambda: chunked_per_group(NUM_WORKERS, budget_tokens, budget_tokens))


def _strong(
    budget_tokens: int, least_tokens: int, *, overlap_tokens: int = UNBOUNDED, is_pinned: bool = True
) -> Synchronous:
    settings = Strong(
        budget_tokens=budget_tokens,
        least_tokens=least_tokens,
        chunk_tokens=budget_tokens,
        overlap_tokens=overlap_tokens,
    )
    return Synchronous(lambda: strong(NUM_WORKERS, settings, work), is_pinned)


BEST: Final[Mapping[str, Setting]] = {
    OURS: Asynchronous("paper", 1024, 2048),
    "asap": Asynchronous("asap", 512, 2048),
    "default": _default(2048),
    "chunked": _chunked(1024),
    "chunked, queue a group": _queue_a_group(1024),
    "strong": _strong(2048, 512),
}
"""The best of the candidates, by `--sweep` (docs/async_vs_sync.md)."""

CANDIDATES: Final[Mapping[str, Setting]] = {
    **{
        f"{policy} {inflection}, solo {solo}": Asynchronous(policy, inflection, solo)
        for policy in ("asap", "paper")
        for inflection, solo in ((512, 512), (512, 1024), (512, 2048), (1024, 1024), (1024, 2048), (1024, 4096))
    },
    **{f"default {budget}": _default(budget) for budget in (1024, 2048, 4096)},
    **{f"chunked {budget}": _chunked(budget) for budget in (512, 1024, 2048)},
    **{f"chunked {budget}, queue a group": _queue_a_group(budget) for budget in (1024, 2048)},
    "strong 1024": _strong(1024, 1024),
    "strong 256 to 2048": _strong(2048, 256),
    "strong 512 to 2048": _strong(2048, 512),
    "strong 1024 to 4096": _strong(4096, 1024),
    "strong 512 to 2048, overlap": _strong(2048, 512, overlap_tokens=1024),
    "strong 512 to 2048, any core": _strong(2048, 512, is_pinned=False),
}


@contextmanager
def running(model: Path, cores: tuple[int, int], settings: Mapping[str, Setting]) -> Iterator[dict[str, System]]:
    """The processes of every kind that is wanted, started once, and each system over them; who is not asked sleeps."""
    fleets: dict[tuple[type[Setting], bool], Fleet] = {}
    with ExitStack() as stack:
        systems = {}
        for name, setting in settings.items():
            is_pinned = isinstance(setting, Synchronous) and setting.is_pinned
            key = (type(setting), is_pinned)
            if key not in fleets:
                fleets[key] = Fleet(*_processes(model, cores, *key))
                stack.callback(fleets[key].stop)
            systems[name] = System(fleets[key], _feed(fleets[key], setting))
        yield systems


def _processes(
    model: Path, cores: tuple[int, int], kind: type[Setting], is_pinned: bool
) -> tuple[ServeConfig, list[Place]]:
    """Devices are free to use either core: there are two a core."""
    indices = range(NUM_WORKERS)
    if kind is Asynchronous:
        return _config(model, 2 * MAX_TOKENS), [Place(each, i, None) for each in (Attention, MoE) for i in indices]
    return _config(model, 8 * MAX_TOKENS), [Place(Lockstep, i, cores[i] if is_pinned else None) for i in indices]


def _config(model: Path, max_tokens: int) -> ServeConfig:
    """D = E = 2, one thread a process; what is in flight together has room for `max_tokens`."""
    return ServeConfig(
        model=str(model.resolve()),
        parallel=ParallelSpec(dp_groups=NUM_WORKERS, tp=1, moe_devices=NUM_WORKERS),
        prefill=PrefillSpec(max_tokens=max_tokens, solo_tokens=max_tokens // 2, inflection_tokens=1),
    )


def _feed(fleet: Fleet, setting: Setting) -> Callable[[], Feed]:
    if isinstance(setting, Synchronous):
        return lambda: SyncFeed(fleet.pipes, setting.policy())
    prefill = PrefillSpec(
        max_tokens=2 * MAX_TOKENS,
        solo_tokens=setting.solo_tokens,
        inflection_tokens=setting.inflection_tokens,
        max_wait_s=0.0,
    )

    def feed() -> Feed:
        policy = policy_of(setting.policy, prefill, work)
        return AsyncFeed(fleet.pipes, DualBatchScheduler(prefill, NUM_WORKERS, UNBOUNDED, UNBOUNDED, policy))

    return feed
