"""A key that the routes ask for, and where it may come from."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from asap_ray.actors.api_key import read_key
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError

KEY = "sk-vixen-7"
OK = {"prompt": [1, 2], "max_tokens": 1}

Ask = Callable[..., httpx.Response]


@pytest.fixture
def config(config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> ServeConfig:
    """The configuration of the other files, with a key."""
    monkeypatch.setenv("VIXEN_KEY", f"{KEY}\n")
    return dataclasses.replace(config, api_key_from="env:VIXEN_KEY")


@pytest.fixture
def ask(connect: Callable[[], Any]) -> Ask:
    """One request to a fresh instance, with this Authorization header if any."""

    def send(method: str, path: str, authorization: str | bytes | None = None) -> httpx.Response:
        async def once() -> httpx.Response:
            async with connect() as client:
                headers = {} if authorization is None else {"Authorization": authorization}
                return await client.request(method, path, json=OK if method == "POST" else None, headers=headers)

        return asyncio.run(once())

    return send


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer none",
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        b"Bearer \xff",
    ],
)
def test_without_the_key_a_prompt_is_401(ask: Ask, authorization: str | bytes | None) -> None:
    """In OpenAI's shape and with its code, so that clients raise AuthenticationError."""
    response = ask("POST", "/v1/completions", authorization)

    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json()["error"] == {
        "message": "this instance needs its API key: Authorization: Bearer KEY",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY} "])
def test_with_the_key_a_prompt_is_answered(ask: Ask, authorization: str) -> None:
    """The scheme's case and space around the key do not matter."""
    assert ask("POST", "/v1/completions", authorization).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping", "/version"])
def test_probes_need_no_key(ask: Ask, path: str) -> None:
    """Kubernetes and load balancers have none."""
    assert ask("GET", path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("GET", "/v1/models/tiny"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize")],
)
def test_every_other_route_needs_it(ask: Ask, method: str, path: str) -> None:
    """A route is closed unless it is on the list of open ones."""
    assert ask(method, path).status_code == 401


def test_no_key_is_logged(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Neither ours nor a wrong one, which may be somebody's right one elsewhere."""
    caplog.set_level(logging.DEBUG)

    ask("POST", "/v1/completions", "Bearer sk-elsewhere")
    ask("POST", "/v1/completions", f"Bearer {KEY}")

    assert [word for word in ("sk-elsewhere", KEY) if word in caplog.text] == []


def test_a_key_may_lie_in_a_file(tmp_path: Path) -> None:
    """With a line's end, as editors leave it."""
    (tmp_path / "key").write_text(f"{KEY}\n")

    assert read_key(f"file:{tmp_path}/key") == KEY


@pytest.mark.parametrize("content", [b"", b"  \n", b"two words", b"two\nlines", b"caf\xc3\xa9", b"a\x00b"])
def test_a_file_without_one_word_is_no_key(tmp_path: Path, content: bytes) -> None:
    """An empty file must not mean that everybody may ask; the message has no key in it."""
    (tmp_path / "key").write_bytes(content)

    with pytest.raises(ConfigError) as refused:
        read_key(f"file:{tmp_path}/key")

    assert str(refused.value) == (
        f"no API key at file:{tmp_path}/key: what is there is not one word of printable ASCII"
    )


@pytest.mark.parametrize(
    ("source", "why"), [("env:NOT_SET", "not set in the environment"), ("file:/nowhere", "No such file or directory")]
)
def test_a_missing_key_is_refused(source: str, why: str) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError, match=f"no API key at {source}: {why}"):
        read_key(source)


def test_a_key_in_the_configuration_itself_is_refused(config: ServeConfig) -> None:
    """It would be on Ray's dashboard and in every device; the message does not repeat it."""
    with pytest.raises(ConfigError) as refused:
        dataclasses.replace(config, api_key_from=KEY)

    assert KEY not in str(refused.value)


def test_a_key_is_compared_in_constant_time(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of a guess is right must not show in how long it takes: the comparison is `hmac.compare_digest`."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return True

    monkeypatch.setattr("asap_ray.actors.api_key.hmac.compare_digest", compare)

    assert ask("POST", "/v1/completions", "Bearer guess").status_code == 200
    assert compared == [(b"guess", KEY.encode())]
