"""Dashboards into a Grafana server, over its HTTP API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import requests
from grafana_api.grafana_api import GrafanaException
from grafana_api.grafana_face import GrafanaFace

from asap_ray.dashboards.grafana import FOLDER_UID, Board
from asap_ray.errors import ConfigError, Unavailable

_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of one thing: created, updated or unchanged."""

    what: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Datasource:
    """A Prometheus server, as Grafana reaches it."""

    name: str
    url: str


class Grafana:
    """One server. What is there is compared first, and written only if it differs: a second push changes nothing."""

    def __init__(self, url: str, token: str | None) -> None:
        """`url` may hold `USER:PASSWORD@` instead of a token.

        Raises:
            ConfigError: it is no server's, or there is nothing to log in with.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--grafana {url!r} is no server; write http://HOST:PORT or https://HOST/PATH")
        if not token and not parts.username:
            raise ConfigError("no login: give a service account's --token, or http://USER:PASSWORD@HOST:PORT")
        host, path = parts.netloc.rpartition("@")[2], parts.path.strip("/")
        self._address = f"{parts.scheme}://{host}/{path}".rstrip("/")
        self._face = GrafanaFace(
            token or (unquote(parts.username or ""), unquote(parts.password or "")),
            host=host,  # with its port, if it has one
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            timeout=_TIMEOUT_S,
        )

    def push(self, boards: Sequence[Board], datasource: Datasource | None) -> Iterator[Pushed]:
        """The folder, the data source if one is given, then the dashboards; each is told once it is done.

        Raises:
            Unavailable: no answer, or none of Grafana's.
            ConfigError: Grafana refuses; says what, and why.
        """
        try:
            yield self._told(f"folder {FOLDER_UID}", self._push_folder)
            if datasource:
                yield self._told(f"data source {datasource.name}", self._push_datasource, datasource)
            for board in boards:
                yield self._told(f"dashboard {board.uid}", self._push_board, board)
        finally:
            self._face.api.s.close()

    def _told(self, what: str, push: Callable[..., str], *args: Any) -> Pushed:
        try:
            return Pushed(what, push(*args))
        except GrafanaException as error:
            said = f"{what}: HTTP {error.status_code}: {_message(error)}"
            if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise ConfigError(f"Grafana at {self._address} refuses {said}") from None
            raise Unavailable(f"Grafana at {self._address} fails at {said}") from None
        except requests.exceptions.JSONDecodeError:
            raise Unavailable(f"{self._address} answers, but not as Grafana does") from None
        except requests.RequestException as error:
            raise Unavailable(f"no Grafana at {self._address}: {error}") from None

    def _push_folder(self) -> str:
        if _existing(self._face.folder.get_folder, FOLDER_UID):
            return "unchanged"
        self._face.folder.create_folder(FOLDER_UID, uid=FOLDER_UID)
        return "created"

    def _push_datasource(self, datasource: Datasource) -> str:
        wanted = {"name": datasource.name, "type": "prometheus", "access": "proxy", "url": datasource.url}
        existing = _existing(self._face.datasource.get_datasource_by_name, datasource.name)
        if existing is None:
            self._face.datasource.create_datasource(wanted)
            return "created"
        if wanted.items() <= existing.items():
            return "unchanged"
        self._face.datasource.update_datasource(existing["id"], existing | wanted)
        return "updated"

    def _push_board(self, board: Board) -> str:
        wanted, existing = board.to_json(), _existing(self._face.dashboard.get_dashboard, board.uid)
        if existing:
            is_here = existing["meta"].get("folderUid") == FOLDER_UID
            if is_here and wanted.items() <= existing["dashboard"].items():  # Grafana adds an id and a version
                return "unchanged"
        self._face.dashboard.update_dashboard(
            {"dashboard": wanted, "folderUid": FOLDER_UID, "overwrite": True, "message": "asap-ray dashboards push"}
        )
        return "updated" if existing else "created"


def _existing(get: Callable[[str], dict[str, Any]], key: str) -> dict[str, Any] | None:
    """What the server has under a key; None if nothing."""
    try:
        return get(key)
    except GrafanaException as error:
        if error.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise


def _message(error: GrafanaException) -> str:
    """Grafana's own words, or what came instead."""
    said = error.response.get("message") if isinstance(error.response, dict) else error.response
    return str(said or error.message)
