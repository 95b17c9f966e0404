"""Requests drawn from the OpenAPI document of a real instance: the engine behind the routes is not harmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from tests.actors.test_served import Served
from tests.http.test_document import CHECKS

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An instance that serves."""
    served = Served(tiny_model, tmp_path_factory.mktemp("served") / "log")
    served.wait_until_ready()
    yield served
    served.kill_everything()


@pytest.fixture
def real_document(served: Served) -> Any:
    """The document as a client finds it."""
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("real_document")


@schema.parametrize()
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_breaks_the_instance(case: schemathesis.Case) -> None:
    """What is accepted runs on attention groups and MoE devices."""
    case.call_and_validate(checks=CHECKS)


def test_the_instance_serves_on(served: Served) -> None:
    """The same devices answer a sound prompt after all of that."""
    assert served.answers()
