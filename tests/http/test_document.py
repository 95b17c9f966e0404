"""The served OpenAPI document, and requests drawn from it: no route fails, none answers what is not written there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from asap_ray.actors.frontend import build_api
from asap_ray.actors.service import PrefillService, ServedModel
from asap_ray.config import ServeConfig
from tests.http.echo_groups import EchoGroups

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
"""Not those that want every body of the schema accepted: ids have a vocabulary, prompts a length."""

POSTS = ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/tokenize", "/detokenize"]


@pytest.fixture
def url(config: ServeConfig, model: ServedModel) -> Iterator[str]:
    """A server on a free loopback port; the socket listens before the server runs, so nobody polls."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        api = build_api(PrefillService(config, model, EchoGroups()))
        server = uvicorn.Server(uvicorn.Config(api, log_level="critical", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def document(url: str) -> Any:
    """The document as a client finds it."""
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_breaks_a_route(case: schemathesis.Case) -> None:
    """Bodies that fit the document and bodies that do not, headers and queries: answered as documented."""
    case.call_and_validate(checks=CHECKS)


@pytest.mark.parametrize("path", POSTS)
def test_every_body_is_in_the_document(url: str, path: str) -> None:
    """Routes read bodies by hand; without their schemas the test above would send nothing."""
    document = httpx.get(f"{url}/openapi.json").json()

    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]
    assert "$ref" not in str(body)
