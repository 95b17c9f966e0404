"""A request that nobody waits for ends with its next token, on every rank of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.batch import Batch
from asap_ray.models.decoder import Decoder
from asap_ray.models.model import load_model
from asap_ray.models.passes import Pass
from asap_ray.protocol import NOBODY, Finished
from tests.models.divided import Experts, Outcome, batch_of, run_divided, run_rank

Make = Callable[..., tuple[Path, Any]]


class Left:
    """A stage whose rank 0 hears after two passes that the client of request 0 has left; the others hear nothing."""

    def __init__(self, stage: Decoder) -> None:
        self._stage = stage
        self._num_passes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    async def finish(self, state: Pass, expert_out: torch.Tensor) -> Finished:
        """One more pass."""
        self._num_passes += 1
        is_told = self._num_passes > 2 and self._stage._collective.rank == 0
        unwanted: Set[str] = {"0"} if is_told else NOBODY
        return await self._stage.finish(state, expert_out, unwanted)


def run_left(stage: Decoder, experts: Experts, batches: Sequence[Batch]) -> Outcome:
    """See `Left`."""
    left: Any = Left(stage)
    return run_rank(left, experts, batches)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_request_whose_client_left_ends_with_its_next_token(transformers_model: Make, tp: int) -> None:
    """Its neighbour goes on and says what it would have said; every rank gives the same tokens."""
    model = load_model(transformers_model()[0])
    batch = batch_of([[1, 2, 3], [4, 5]], max_tokens=6)
    (alone, *_) = run_divided(model, batch, tp=tp)
    outcomes = run_divided(model, batch, tp=tp, run=run_left)
    said = {name: [t.token_id for t in alone.tokens if t.request_id == name] for name in "01"}

    for outcome in outcomes:
        ends = {t.request_id: t.finish_reason for t in outcome.tokens if t.finish_reason}
        heard = {name: [t.token_id for t in outcome.tokens if t.request_id == name] for name in "01"}
        assert ends == {"0": "abort", "1": "length"}
        assert heard == {"0": said["0"][:3], "1": said["1"]}


def test_a_token_that_is_the_last_one_anyway_says_so(transformers_model: Make) -> None:
    """A client may leave while it is on its way."""
    model = load_model(transformers_model()[0])
    (outcome,) = run_divided(model, batch_of([[1, 2, 3]], max_tokens=3), run=run_left)

    assert [token.finish_reason for token in outcome.tokens] == [None, None, "length"]
