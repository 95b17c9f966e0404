"""Every policy in the table of docs/policies.md."""

from __future__ import annotations

import pytest

from asap_ray.evaluation.ablations import ABLATIONS
from asap_ray.evaluation.systems import paper_setup
from asap_ray.workload.lengths import paper_trace


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_policy_answers_every_prompt(name: str) -> None:
    """Three seconds at 12 RPS, prompts of every length."""
    run = ABLATIONS[name](paper_setup(), paper_trace(12.0, 3.0, seed=0))

    assert [row for row in run.rows if row.ttft_s is None] == []
