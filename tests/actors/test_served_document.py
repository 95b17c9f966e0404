"""Requests drawn from the OpenAPI document of a real instance: the engine behind the routes is not harmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis

from tests.actors.test_served import Served
from tests.http.test_document import GETS, POSTS, ask_all

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


@pytest.mark.parametrize(("method", "path"), [*(("POST", path) for path in POSTS), *(("GET", path) for path in GETS)])
def test_no_request_breaks_the_instance(real_document: Any, method: str, path: str) -> None:
    """What is accepted runs on attention groups and MoE devices."""
    ask_all(real_document, method, path, count=30 if method == "POST" else 3)


def test_the_instance_serves_on(served: Served) -> None:
    """The same devices answer a sound prompt after all of that."""
    assert served.answers()
