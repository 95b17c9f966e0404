"""asap-ray top."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from asap_ray.errors import AsapError

if TYPE_CHECKING:
    import httpx

    from asap_ray.dashboards.looks import Look

_WINDOW_S: Final = 60.0
"""Of the latencies, while it runs."""


def top(
    url: Annotated[str, typer.Option(help="The instance; any server with vLLM's metrics.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, end; latencies since the start.")] = False,
) -> None:
    """Watch an instance: queue, times to first token, and how busy each device is. Ctrl-C ends it."""
    from asap_ray.dashboards.looks import NEVER, Span, connect, look
    from asap_ray.dashboards.terminal import page

    console = Console(highlight=False)
    with connect(url) as client, contextlib.suppress(KeyboardInterrupt):
        first = look(client)
        if not once:
            _watch(client, first, interval, console)
        time.sleep(interval)
        now = look(client)
        console.print(page(url, Span(first, now), Span(NEVER, now)))


def _watch(client: httpx.Client, first: Look, interval_s: float, console: Console) -> None:
    """Until Ctrl-C; a server that goes away may come back."""
    from asap_ray.dashboards.looks import Span, look
    from asap_ray.dashboards.terminal import page

    looks = deque([first])
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            try:
                looks.append(look(client))
            except AsapError as error:
                live.update(Text(str(error), style="bold red"), refresh=True)
                continue
            while len(looks) > 2 and looks[-1].at_s - looks[1].at_s >= _WINDOW_S:
                looks.popleft()
            pace, answers = Span(looks[-2], looks[-1]), Span(looks[0], looks[-1])
            live.update(page(str(client.base_url), pace, answers), refresh=True)
