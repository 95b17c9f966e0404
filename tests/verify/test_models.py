"""spin's searches of the protocol's models: the quick cases; `make verify` runs all."""

from __future__ import annotations

import pytest

from tests.verify.cases import BROKEN, HOLDING, HOLDS, Case
from tests.verify.spin import missing, search

pytestmark = pytest.mark.skipif(missing() != "", reason=missing())


@pytest.mark.parametrize("case", [case for case in HOLDING if case.quick], ids=lambda case: case.name)
def test_the_protocol_holds(case: Case) -> None:
    """No deadlock, no lost, doubled or mixed item, no unfinished row, in every order of steps."""
    assert search(case).finds == HOLDS


@pytest.mark.parametrize("case", [case for case in BROKEN if case.quick], ids=lambda case: case.name)
def test_a_mistake_is_found(case: Case) -> None:
    """The same search fails when a step is out of place: it can fail."""
    assert search(case).finds == case.finds
