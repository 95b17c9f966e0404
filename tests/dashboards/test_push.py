"""`asap-ray dashboards push` against a stand-in for Grafana."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from asap_ray.cli import main
from asap_ray.dashboards.boards import boards
from asap_ray.errors import ConfigError, Unavailable
from tests.dashboards.fake_grafana import FakeGrafana, serving

pushing = pytest.importorskip("asap_ray.dashboards.push", reason="needs grafana-api: pip install 'asap-ray[grafana]'")


PROMETHEUS = pushing.Datasource("Prometheus", "http://prometheus:9090")
BOARDS = boards()


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    """An empty one."""
    with serving() as fake:
        yield fake


def push(grafana: FakeGrafana, *, datasource: Any = PROMETHEUS) -> set[str]:
    """Push everything; the outcomes."""
    return {pushed.outcome for pushed in pushing.Grafana(grafana.url, "secret").push(BOARDS, datasource)}


def test_a_first_push_creates_everything(grafana: FakeGrafana) -> None:
    """The folder, the data source and the dashboards as the file has them; the token goes along."""
    outcomes = push(grafana)

    assert (outcomes, set(grafana.folders), set(grafana.datasources)) == ({"created"}, {"asap-ray"}, {"Prometheus"})
    stored = {uid: each["dashboard"] for uid, each in grafana.dashboards.items()}
    assert stored == {board.uid: stored[board.uid] | board.to_json() for board in BOARDS}
    assert grafana.logins == {"Bearer secret"}


def test_a_second_push_writes_nothing(grafana: FakeGrafana) -> None:
    """It may run at every deployment."""
    push(grafana)
    grafana.written.clear()

    assert (push(grafana), grafana.written) == ({"unchanged"}, [])


def test_what_differs_is_written_again(grafana: FakeGrafana) -> None:
    """A title that somebody changed, a dashboard in another folder, a data source that moved: keeping its settings."""
    push(grafana)
    edited, moved = BOARDS[0].uid, BOARDS[1].uid
    grafana.dashboards[edited]["dashboard"]["title"] = "mine"
    grafana.dashboards[moved]["meta"]["folderUid"] = "elsewhere"
    grafana.datasources["Prometheus"]["jsonData"] = {"timeInterval": "10s"}
    pushed = list(pushing.Grafana(grafana.url, "secret").push(BOARDS, replace(PROMETHEUS, url="http://other:9090")))

    updated = [each.what for each in pushed if each.outcome == "updated"]
    assert updated == ["data source Prometheus", f"dashboard {edited}", f"dashboard {moved}"]
    assert grafana.dashboards[moved]["meta"] == {"folderUid": "asap-ray"}
    source = grafana.datasources["Prometheus"]
    assert (source["url"], source["jsonData"]) == ("http://other:9090", {"timeInterval": "10s"})


def test_without_prometheus_no_data_source_is_touched(grafana: FakeGrafana) -> None:
    """Most have one already."""
    push(grafana, datasource=None)

    assert grafana.datasources == {}


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (401, {"message": "Invalid API key"}, ConfigError, "refuses folder asap-ray: HTTP 401: Invalid API key"),
        (403, {"message": "Permission denied"}, ConfigError, "refuses folder asap-ray: HTTP 403: Permission denied"),
        (503, {"message": "starting"}, Unavailable, "fails at folder asap-ray: HTTP 503: starting"),
        (200, "<html>", Unavailable, "answers, but not as Grafana does"),
    ],
)
def test_a_refusal_says_what_and_why(
    grafana: FakeGrafana, status: int, body: object, error: type[Exception], message: str
) -> None:
    """In Grafana's own words, with the address."""
    grafana.instead = status, body if isinstance(body, str) else json.dumps(body)

    with pytest.raises(error, match=message) as raised:
        push(grafana)
    assert grafana.url in str(raised.value)


def test_a_refused_dashboard_is_named(grafana: FakeGrafana, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others before it are there already."""
    answer = FakeGrafana.answer

    def provisioned(self: FakeGrafana, method: str, path: str, body: object) -> tuple[int, object]:
        if (method, path) == ("POST", "/api/dashboards/db"):
            return 400, {"message": "Cannot save provisioned dashboard"}
        return answer(self, method, path, body)

    monkeypatch.setattr(FakeGrafana, "answer", provisioned)
    with pytest.raises(ConfigError, match="dashboard asap-overview: HTTP 400: Cannot save provisioned dashboard"):
        push(grafana)


def test_nobody_there_is_said() -> None:
    """Port 9 of this machine has no Grafana."""
    with pytest.raises(Unavailable, match=r"no Grafana at http://127\.0\.0\.1:9: "):
        list(pushing.Grafana("http://127.0.0.1:9", "secret").push(BOARDS, None))


@pytest.mark.parametrize(
    ("url", "token", "message"),
    [
        ("grafana:3000", "secret", "--grafana 'grafana:3000' is no server"),
        ("ftp://grafana", "secret", "is no server"),
        ("http://grafana:3000", None, "no login"),
        ("http://grafana:3000", "", "no login"),
    ],
)
def test_a_mistake_is_found_before_anything_is_sent(url: str, token: str | None, message: str) -> None:
    """What is wrong, and what to write."""
    with pytest.raises(ConfigError, match=message):
        pushing.Grafana(url, token)


def test_a_password_in_the_address_is_never_printed(grafana: FakeGrafana) -> None:
    """Errors go to logs."""
    grafana.instead = 403, "{}"
    address = grafana.url.replace("//", "//admin:p%40ss@")

    with pytest.raises(ConfigError) as raised:
        list(pushing.Grafana(address, None).push(BOARDS, None))
    assert "ss@" not in str(raised.value)
    assert grafana.logins == {"Basic YWRtaW46cEBzcw=="}  # admin:p@ss


def test_a_path_in_the_address_is_kept(grafana: FakeGrafana) -> None:
    """Grafana behind a proxy; the stand-in knows no such path."""
    with pytest.raises(ConfigError, match="no route POST /monitoring/api/folders"):
        list(pushing.Grafana(f"{grafana.url}/monitoring/", "secret").push(BOARDS, None))


def test_the_command_prints_what_became_of_each(
    grafana: FakeGrafana, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token may come from the environment, where no process list shows it."""
    monkeypatch.setenv("GRAFANA_TOKEN", "secret")
    monkeypatch.setattr(sys, "argv", ["asap-ray", "dashboards", "push", "--grafana", grafana.url])

    with pytest.raises(SystemExit) as exit:
        main()

    expected = ["folder asap-ray: created", *(f"dashboard {board.uid}: created" for board in BOARDS)]
    assert (exit.value.code, capsys.readouterr().out.splitlines()) == (0, expected)
