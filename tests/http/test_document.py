"""The served OpenAPI document, and requests drawn from it: no route fails, none answers what is not written there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.config import ServeConfig
from tests.http.echo_groups import EchoGroups
from tests.http.server import serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
"""Not those that want every body of the schema accepted: ids have a vocabulary, prompts a length."""

GETS = ["/v1/models", "/v1/models/{name}", "/ready", "/health", "/ping", "/version", "/metrics"]
POSTS = ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/tokenize", "/detokenize"]


@pytest.fixture
def url(config: ServeConfig, model: ServedModel) -> Iterator[str]:
    """A server on a free loopback port."""
    with serving(PrefillService(config, model, EchoGroups())) as address:
        yield address


@pytest.fixture
def document(url: str) -> Any:
    """The document as a client finds it."""
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def ask_all(document: Any, method: str, path: str, count: int) -> None:
    """Requests of one operation: those that fit the document, and of bodies those that do not."""
    operation = document[path][method]
    modes = GenerationMode if method == "POST" else [GenerationMode.POSITIVE]

    @given(case=st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes]))
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    ask()


@pytest.mark.parametrize(("method", "path"), [*(("POST", path) for path in POSTS), *(("GET", path) for path in GETS)])
def test_no_request_breaks_a_route(document: Any, method: str, path: str) -> None:
    """Bodies, names and headers of any content are answered as documented."""
    ask_all(document, method, path, count=40 if method == "POST" else 3)


@pytest.mark.parametrize("path", POSTS)
def test_every_body_is_in_the_document(url: str, path: str) -> None:
    """Routes read bodies by hand; without their schemas the test above would send nothing."""
    document = httpx.get(f"{url}/openapi.json").json()

    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]
    assert "$ref" not in str(body)
