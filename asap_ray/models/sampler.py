"""From logits to tokens: greedy or nucleus sampling, log-probabilities, and when to stop."""

# Shapes: V vocabulary.

from __future__ import annotations

from typing import Final

import torch

from asap_ray.batch import Request, Sampling, Token

GREEDY_BELOW: Final = 1e-5
"""A temperature below this leaves the likeliest token alone; dividing float32 by it would not be finite."""


class Sampler:
    """The choices of one request; its random numbers are its own, so batching does not change them."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = torch.Generator()
        if sampling.temperature >= GREEDY_BELOW:
            if sampling.seed is None:
                self._random.seed()
            else:
                self._random.manual_seed(sampling.seed)

    def choose(self, logits_V: torch.Tensor) -> int:
        """The next token id: the likeliest where temperature vanishes, else drawn from the top_p nucleus.

        Finite logits never fail: an error here would end the group for every other request.
        """
        if self._sampling.temperature < GREEDY_BELOW:
            return int(logits_V.argmax())
        scaled_V = (logits_V - logits_V.max()) / self._sampling.temperature  # 0 for the likeliest, however it divides
        probs_V, ids_V = torch.softmax(scaled_V, dim=-1).sort(descending=True)
        beyond_V = probs_V.cumsum(-1) - probs_V >= self._sampling.top_p
        beyond_V[0] = False  # top_p=0 keeps the likeliest
        probs_V[beyond_V] = 0
        return int(ids_V[torch.multinomial(probs_V, 1, generator=self._random)])


def token_of(request: Request, token_id: int, num_generated: int, logits_V: torch.Tensor) -> Token:
    """Describe a chosen token; log-probabilities are the model's own, before temperature and top_p.

    Args:
        request: whose token it is.
        token_id: the choice.
        num_generated: tokens of the answer so far, this one included.
        logits_V: float32, what the choice was made from.
    """
    sampling = request.sampling
    finish_reason = None
    if token_id in sampling.stop_token_ids:
        finish_reason = "stop"
    elif num_generated >= sampling.max_tokens:
        finish_reason = "length"
    if sampling.num_logprobs is None:
        return Token(request_id=request.request_id, token_id=token_id, finish_reason=finish_reason)
    logprobs_V = torch.log_softmax(logits_V, dim=-1)
    values_N, ids_N = logprobs_V.topk(min(sampling.num_logprobs, len(logprobs_V)))
    return Token(
        request_id=request.request_id,
        token_id=token_id,
        logprob=float(logprobs_V[token_id]),
        top_logprobs=tuple(zip(ids_N.tolist(), values_N.tolist(), strict=True)),
        finish_reason=finish_reason,
    )
