"""The policies of `asap` one by one: each removed from it, or another in its place (docs/policies.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from asap_ray.backends.virtual import take
from asap_ray.backends.virtual.comm import Take
from asap_ray.evaluation.simulate import Run
from asap_ray.evaluation.sync_systems import attention_work
from asap_ray.evaluation.systems import SYSTEMS, Setup, System, run_policy
from asap_ray.scheduler.admission import Admission, pairs, single
from asap_ray.scheduler.cut import EqualTokens, whole
from asap_ray.scheduler.order import HeadStart, ShortestFirst, first_come
from asap_ray.scheduler.policy import Policy
from asap_ray.scheduler.shares import Cost, tokens
from asap_ray.scheduler.turns import TURN, Turns
from asap_ray.spec import PrefillSpec
from asap_ray.workload.trace import TraceRequest

MakePolicy = Callable[[PrefillSpec, Cost], Policy]


class PieceByPiece(Turns):
    """No prompt overlaps with itself: a piece starts when the one before is done."""

    def _in_order(self, group: int) -> Iterator[Any]:
        prompt = self._under_way.get(group)
        return iter(self._short) if prompt and prompt.num_running else super()._in_order(group)


def _policy(make: MakePolicy) -> System:
    def system(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
        spec = setup.spec()
        return run_policy(spec, make(spec.prefill, attention_work(spec.cost)), trace)

    return system


def _admission(admission: Admission) -> System:
    def system(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
        spec = setup.spec()
        return run_policy(spec, Turns(spec.prefill, attention_work(spec.cost)), trace, admission)

    return system


def _take(choice: Take) -> System:
    def system(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
        spec = replace(setup.spec(), take=choice)
        return run_policy(spec, Turns(spec.prefill, attention_work(spec.cost)), trace)

    return system


def _bound(bound_s: float) -> System:
    def make(prefill: PrefillSpec, cost: Cost) -> Turns:
        full_work = cost(0, TURN * prefill.inflection_tokens)
        return Turns(prefill, cost, order=HeadStart(cost, full_work, bound_s))

    return _policy(make)


def _turn(inflections: int) -> System:
    return _policy(lambda prefill, cost: Turns(prefill, cost, turn_tokens=inflections * prefill.inflection_tokens))


ABLATIONS: Final[dict[str, System]] = {
    "asap": SYSTEMS["asap"],
    "paper": SYSTEMS["paper"],
    "paper, refilled": SYSTEMS["paper_refill"],
    "order: first come": _policy(lambda prefill, cost: Turns(prefill, cost, order=first_come)),
    "order: shortest, no bound": _policy(lambda prefill, cost: Turns(prefill, cost, order=ShortestFirst(1.0))),
    "order: head start 2.5 s": _bound(2.5),
    "order: head start 10 s": _bound(10.0),
    "long prompts whole": _policy(lambda prefill, cost: Turns(prefill, cost, cut=whole)),
    "pieces of 4k tokens": _policy(lambda prefill, cost: Turns(prefill, cost, cut=EqualTokens(4096))),
    "pieces of 8k tokens": _policy(lambda prefill, cost: Turns(prefill, cost, cut=EqualTokens(8192))),
    "piece by piece": _policy(PieceByPiece),
    "turn of 4k": _turn(2),
    "turn of 8k": _turn(4),
    "turn of 12k": _turn(6),
    "work in tokens": _policy(lambda prefill, cost: Turns(prefill, tokens)),  # noqa: ARG005
    "pairs": _admission(pairs),
    "one batch a group": _admission(single),
    "MoE takes the oldest": _take(take.oldest),
    "MoE takes the shortest": _take(take.shortest),
    "MoE takes the least slack": _take(take.least_slack),
    "MoE takes the most stalled": _take(take.most_stalled),
}
