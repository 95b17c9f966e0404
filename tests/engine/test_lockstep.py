"""A synchronous system on the host backend computes what the undivided model does, step by step (5.1)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from asap_ray.backends.host_lockstep import HostLockstep
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import Closed, ConfigError
from asap_ray.models.model import Model, load_model
from asap_ray.spec import ParallelSpec, PrefillSpec
from tests.models.divided import batch_of, random_prompts, run_divided

LENGTHS = (40, 3, 17, 64, 1, 8, 23, 5)
IDLE = Batch(())

Steps = list[list[tuple[Batch, ...]]]  # by step, then worker, then slot


class Script:
    """`StepQueue` of one worker that is given all its steps at once."""

    def __init__(self, shares: Sequence[tuple[Batch, ...]]) -> None:
        self._shares = iter(shares)
        self.tokens: list[Token] = []

    async def step(self) -> tuple[Batch, ...]:
        """The next share."""
        if (share := next(self._shares, None)) is None:
            raise Closed("the script is over")
        return share

    async def deliver(self, _batch: Batch, tokens: tuple[Token, ...], _stamps: Stamps) -> None:
        """Keep the tokens."""
        self.tokens += tokens


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    """Half a million parameters."""
    return load_model(tiny_model)


def config_of(model: Model, num_workers: int) -> ServeConfig:
    """D' = E' workers with room for micro-batches of 96 tokens."""
    return ServeConfig(
        model=str(model.directory),
        parallel=ParallelSpec(dp_groups=num_workers, tp=1, moe_devices=num_workers),
        prefill=PrefillSpec(max_tokens=192, solo_tokens=96, inflection_tokens=8, deadline_s=20.0),
    )


def run(model: Model, num_workers: int, steps: Steps) -> dict[str, Token]:
    """All steps on workers in threads of this process; the tokens by request."""
    workers = [HostLockstep(config_of(model, num_workers), model, index) for index in range(num_workers)]
    ranks, devices = zip(*(worker.registrations({}) for worker in workers), strict=True)
    for worker in workers:
        worker.connect(ranks, devices)
    scripts = [Script([step[index] for step in steps]) for index in range(num_workers)]
    failures: list[BaseException] = []

    def serve(worker: HostLockstep, script: Script) -> None:
        try:
            worker.serve(script)
        except BaseException as failure:
            failures.append(failure)
            for each in workers:
                each.runtime.close()

    threads = [threading.Thread(target=serve, args=pair) for pair in zip(workers, scripts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {token.request_id: token for script in scripts for token in script.tokens}


def prompts(model: Model, lengths: Sequence[int] = LENGTHS) -> tuple[Request, ...]:
    """Random prompts, named by their position."""
    return batch_of(random_prompts(list(lengths), model.config.vocab_size), num_logprobs=0).requests


def undivided(model: Model, requests: Sequence[Request]) -> dict[str, Token]:
    """Each prompt alone on one rank and one device."""
    return {request.request_id: run_divided(model, Batch((request,)))[0].tokens[0] for request in requests}


def assert_same(actual: dict[str, Token], expected: dict[str, Token]) -> None:
    """Equal token ids, and their log-probabilities to four digits."""
    assert {name: token.token_id for name, token in actual.items()} == {
        name: token.token_id for name, token in expected.items()
    }
    logprobs = {name: token.logprob for name, token in expected.items()}
    assert {name: token.logprob for name, token in actual.items()} == pytest.approx(logprobs, rel=1e-4)


@pytest.mark.parametrize("num_micro", [1, 2])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_tokens_equal_the_undivided_model(model: Model, num_workers: int, num_micro: int) -> None:
    """D' = E' in 1..3, one and two micro-batches a step; what is left over leaves ranks idle."""
    requests = prompts(model)
    micros = [Batch((request,)) for request in requests]
    width = num_workers * num_micro
    micros += [IDLE] * (-len(micros) % width)
    steps = [
        [tuple(micros[start + num_micro * index :][:num_micro]) for index in range(num_workers)]
        for start in range(0, len(micros), width)
    ]

    answers = run(model, num_workers, steps)

    assert_same(answers, undivided(model, requests))


def test_several_prompts_a_micro_batch(model: Model) -> None:
    """Prompts of one micro-batch share each layer's item and nothing else."""
    requests = prompts(model)
    steps = [[(Batch(requests[:2]), Batch(requests[2:3])), (Batch(requests[3:4]), Batch(requests[4:]))]]

    answers = run(model, 2, steps)

    assert_same(answers, undivided(model, requests))


def test_an_idle_rank_keeps_step(model: Model) -> None:
    """A prompt on one rank is answered although the others have none, and none is owed to them."""
    requests = prompts(model, [30])
    steps = [[(IDLE, IDLE), (Batch(requests), IDLE), (IDLE, IDLE)]]

    answers = run(model, 3, steps)

    assert_same(answers, undivided(model, requests))


def test_a_long_prompt_fills_the_room_of_both_slots(model: Model) -> None:
    """A step of one micro-batch may be as long as the longest prompt."""
    requests = prompts(model, [150, 4])
    steps = [[(Batch(requests[:1]),), (Batch(requests[1:]),)]]

    answers = run(model, 2, steps)

    assert_same(answers, undivided(model, requests))


@pytest.mark.parametrize("num_micro", [1, 2])
def test_a_prompt_in_chunks(model: Model, num_micro: int) -> None:
    """Chunks on one rank, a step each or two in the slots of one step, beside whole prompts on the other."""
    long, *others = prompts(model, [120, 9, 33, 12, 20])
    chunks = [Batch((long.chunk(start, start + 30),)) for start in range(0, 120, 30)]
    wholes = [Batch((request,)) for request in others]
    steps = [
        [tuple(chunks[start : start + num_micro]), tuple(wholes[start : start + num_micro])]
        for start in range(0, 4, num_micro)
    ]

    answers = run(model, 2, steps)

    assert_same(answers, undivided(model, [long, *others]))


def test_a_worker_is_a_group_and_a_device(model: Model) -> None:
    """Other degrees than D' = E' and T = 1 are refused."""
    config = config_of(model, 2)
    uneven = ServeConfig(model=config.model, parallel=ParallelSpec(dp_groups=2, tp=1, moe_devices=1))

    with pytest.raises(ConfigError, match="dp_groups=moe_devices"):
        HostLockstep(uneven, model, 0)
