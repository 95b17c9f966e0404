"""What may enter the queue of an instance."""

from __future__ import annotations

import time
from collections.abc import Sequence

from asap_ray.actors.limits import Limits, check_count
from asap_ray.actors.served_model import ServedModel
from asap_ray.batch import Request
from asap_ray.config import ServeConfig
from asap_ray.errors import RequestError
from asap_ray.kvcache.block_keys import block_keys, root_key
from asap_ray.scheduler.dual_batch import DualBatchScheduler


class Admission:
    """The door of one scheduler."""

    def __init__(self, config: ServeConfig, model: ServedModel, scheduler: DualBatchScheduler) -> None:
        self._config = config
        self._model = model
        self._scheduler = scheduler

    @property
    def limits(self) -> Limits:
        """What one prompt may ask; the longest grows once the groups have said what their caches hold."""
        return Limits(
            vocab_size=self._model.vocab_size,
            max_prompt_tokens=min(self._scheduler.longest_prompt, self._model.max_model_len),
            max_answer_tokens=self._config.max_answer_tokens,
            max_model_len=self._model.max_model_len,
        )

    def check(self, requests: Sequence[Request]) -> None:
        """Refuse what no group could run, and more prompts of one client than the queue could ever hold.

        Raises:
            RequestError: names the field, its value and the limit; or an id is in use.
        """
        check_count(len(requests), self._config.max_queued_requests)
        for request in requests:
            self.limits.check(request)
            self._scheduler.check(request)

    def check_total(self, requests: Sequence[Request]) -> None:
        """Refuse prompts of one client that together could never be queued.

        Raises:
            RequestError: says how many tokens they have.
        """
        num_tokens, most_tokens = sum(request.num_tokens for request in requests), self._config.max_queued_tokens
        if len(requests) > 1 and num_tokens > most_tokens:
            raise RequestError(
                f"{len(requests)} prompts of {num_tokens} tokens in one request; the queue holds {most_tokens}",
                "prompt",
            )

    def queue(self, request: Request, cache_salt: str) -> None:
        """Queue one prompt; its prefixes are shared with prompts of the same `cache_salt`.

        Raises:
            Overloaded: the queue is full, or the first token would be late.
        """
        root = root_key(self._model.fingerprint, cache_salt)
        keys = block_keys(request.token_ids, self._config.kv_cache.block_size, root)
        self._scheduler.submit(request, time.monotonic(), keys)
