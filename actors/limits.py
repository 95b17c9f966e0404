"""What one prompt may ask of an instance, whoever sends it: an error in the engine would end a group for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from asap_ray.batch import Request, Sampling
from asap_ray.errors import RequestError

MAX_TEMPERATURE: Final = 2.0
MAX_LOGPROBS: Final = 20
SEEDS: Final = range(-(2**63), 2**63)

_TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one instance; every number is a count of tokens."""

    vocab_size: int
    max_prompt_tokens: int
    max_answer_tokens: int
    max_model_len: int  # positions: prompt and generated tokens together

    def longest_answer(self, num_prompt_tokens: int) -> int:
        """Tokens that may follow a prompt so long; the last one needs no position of its own."""
        return min(self.max_answer_tokens, self.max_model_len - num_prompt_tokens + 1)

    def check(self, request: Request) -> None:
        """Refuse what no group could run.

        Raises:
            RequestError: names the field, its value and the limit.
        """
        self._check_prompt(request)
        self._check_max_tokens(request)
        self._check_sampling(request.sampling)

    def _check_prompt(self, request: Request) -> None:
        num_bytes = len(request.token_ids)
        if num_bytes != _TOKEN_BYTES * request.num_tokens:
            raise RequestError(
                f"num_tokens={request.num_tokens} with {num_bytes} bytes of token_ids; a token has {_TOKEN_BYTES}",
                "num_tokens",
            )
        if not 1 <= request.num_tokens <= self.max_prompt_tokens:
            raise RequestError(
                f"prompt has {request.num_tokens} tokens; the limit is 1 to {self.max_prompt_tokens}", "prompt"
            )
        ids = np.frombuffer(request.token_ids, dtype="<i4")
        wrong = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
        if len(wrong):
            raise RequestError(
                f"prompt[{wrong[0]}]={ids[wrong[0]]} is not a token id; ids are integers in 0..{self.vocab_size - 1}",
                "prompt",
            )

    def _check_max_tokens(self, request: Request) -> None:
        longest = self.longest_answer(request.num_tokens)
        if not 1 <= request.sampling.max_tokens <= longest:
            reason = (
                "longest answer of this instance" if longest == self.max_answer_tokens else "room after this prompt"
            )
            raise _refused("max_tokens", request.sampling.max_tokens, f"1 to {longest}, the {reason}")

    def _check_sampling(self, sampling: Sampling) -> None:
        if not 0 <= sampling.temperature <= MAX_TEMPERATURE:
            raise _refused("temperature", sampling.temperature, f"0 to {MAX_TEMPERATURE:g}")
        if not 0 < sampling.top_p <= 1:
            raise _refused("top_p", sampling.top_p, "above 0, to 1")
        if sampling.seed is not None and sampling.seed not in SEEDS:
            raise _refused("seed", sampling.seed, "a signed 64-bit integer")
        if sampling.num_logprobs is not None and not 0 <= sampling.num_logprobs <= MAX_LOGPROBS:
            raise _refused("logprobs", sampling.num_logprobs, f"0 to {MAX_LOGPROBS}")
        for token_id in sampling.stop_token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise _refused("stop_token_ids", token_id, f"0 to {self.vocab_size - 1}")


def check_count(num_prompts: int, most: int) -> None:
    """Refuse more prompts in one request than could ever be queued; a retry would not help.

    Raises:
        RequestError: names the number and the limit.
    """
    if num_prompts > most:
        raise RequestError(f"{num_prompts} prompts in one request; the queue holds {most}", "prompt")


def _refused(field: str, value: float, limit: str) -> RequestError:
    return RequestError(f"{field}={value}; the limit is {limit}", field)
