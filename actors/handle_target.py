"""A Serve application as the target of a replay, without HTTP between."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from ray.serve.handle import DeploymentHandle

from asap_ray.batch import Request, Sampling
from asap_ray.messages import Answered, decode, encode
from asap_ray.workload.client import Reply


class HandleTarget:
    """`Target` over the frontend's handle; statuses are those HTTP would have had."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._prefill: Any = handle.options(stream=True).prefill

    async def send(self, prompt_ids: list[int], max_tokens: int, on_first_token: Callable[[], None]) -> Reply:
        """See `Target`."""
        request = Request(
            request_id=uuid.uuid4().hex,
            num_tokens=len(prompt_ids),
            arrival_s=0.0,  # the frontend's clock is not ours
            token_ids=np.asarray(prompt_ids, dtype="<i4").tobytes(),
            sampling=Sampling(max_tokens=max_tokens),
        )
        parts: dict[str, float] = {}
        async for message in self._prefill.remote(encode(request)):
            reply = decode(Answered, message)
            if reply.error:
                return Reply(reply.status, reply.error, parts)
            if reply.ttft_parts_s:
                on_first_token()
                parts = reply.ttft_parts_s
        return Reply(200, None, parts)
