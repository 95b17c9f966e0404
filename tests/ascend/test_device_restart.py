"""A die dies at every point of receive, compute and send; its successor serves on. As on a host."""

from __future__ import annotations

import pytest

from asap_ray.engine import attention
from tests.csrc.kinds import ascend_kind
from tests.engine.test_device_restart import POINTS, Death, Mortal
from tests.engine.test_host import LIMIT, whole
from tests.engine.toys import Toy, ToyInstance, expected, random_batch

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("point", POINTS)
def test_no_answer_is_lost_or_wrong(point: str) -> None:
    """T = 2, batches of all sizes, two in flight; device 0 dies twice at one point."""
    toy = Toy(whole(dp_groups=1, tp=2, moe_devices=2))
    mortal = Mortal(toy, [Death(point, 3), Death(point, 2)])
    batches = [(0, random_batch(str(n), [size], seed=n)) for n, size in enumerate([20, 5, LIMIT, 1, 7])]

    with ToyInstance(toy, loops=(attention.serve, mortal.serve), kind=ascend_kind()) as running:
        mortal.running = running
        answers = running.ask(batches)

    wanted = {name: total for _, batch in batches for name, total in expected(toy, batch).items()}
    assert mortal.num_deaths == 2
    assert answers == pytest.approx(wanted, rel=1e-4)
