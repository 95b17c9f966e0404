"""Clients whose prompts are under way, and the tokens that groups make for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from asap_ray.actors.frontend_metrics import FrontendMetrics
from asap_ray.actors.waiter import TokenEvent, Waiter
from asap_ray.batch import Request, Stamps, Token
from asap_ray.errors import AsapError, PeerTimeout, Unavailable

Events = asyncio.Queue[TokenEvent | AsapError]


class Answers:
    """Who waits, by request id. All methods belong to one asyncio loop."""

    def __init__(self, metrics: FrontendMetrics, deadline_s: float) -> None:
        """No client waits longer than `deadline_s` for its next token, and none is waited for longer."""
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._waiting: dict[str, Waiter] = {}

    def add(self, waiter: Waiter) -> None:
        """Its prompt is queued."""
        self._waiting[waiter.request.request_id] = waiter

    def get(self, request_id: str) -> Waiter | None:
        """Who waits for the tokens of a prompt, if its client is still here."""
        return self._waiting.get(request_id)

    def of(self, requests: Iterable[Request]) -> list[Waiter]:
        """Those whose clients are still here."""
        return [waiter for each in requests if (waiter := self._waiting.get(each.request_id))]

    def all(self) -> list[Waiter]:
        """Everybody."""
        return list(self._waiting.values())

    def leave(self, requests: Iterable[Request]) -> None:
        """Their client is gone, or has all it asked for."""
        for request in requests:
            self._waiting.pop(request.request_id, None)

    def fail(self, requests: Iterable[Request], error: AsapError) -> None:
        """Nothing more comes, and why."""
        for request in list(requests):
            if waiter := self._waiting.pop(request.request_id, None):
                waiter.events.put_nowait(error)

    async def next(self, events: Events) -> TokenEvent:
        """See `next_token`."""
        return await next_token(events, self._deadline_s)

    async def passes(
        self, group: int, running: AsyncIterator[tuple[tuple[Token, ...], Stamps]]
    ) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """What a group makes of a batch, pass by pass.

        Raises:
            PeerTimeout: none came before the deadline.
        """
        while True:
            try:
                async with asyncio.timeout(self._deadline_s):
                    made = await anext(running)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise PeerTimeout(f"group {group} produced nothing within {self._deadline_s:g} s") from None
            yield made

    def give(
        self, tokens: Sequence[Token], *, is_first: bool, hand_off: Callable[[Waiter, TokenEvent], TokenEvent]
    ) -> list[str]:
        """Tokens of one pass to whoever waits for them, through `hand_off` if a decode instance goes on.

        Returns:
            The requests that nobody waits for, though more of their tokens follow.
        """
        for token in tokens:
            if client := self._waiting.get(token.request_id):
                event = client.event(token, is_first=is_first)
                client.events.put_nowait(hand_off(client, event) if client.hands_off else event)
                self._metrics.answered(client, event)
                if token.finish_reason:
                    del self._waiting[token.request_id]
        return [t.request_id for t in tokens if not t.finish_reason and t.request_id not in self._waiting]


async def next_token(events: Events, deadline_s: float) -> TokenEvent:
    """The next token for a client.

    Raises:
        AsapError: what its prompt failed with; `Unavailable` after the deadline.
    """
    try:
        async with asyncio.timeout(deadline_s):
            event = await events.get()
    except TimeoutError:
        raise Unavailable(f"no token within {deadline_s:g} s") from None
    if isinstance(event, AsapError):
        raise event
    return event
