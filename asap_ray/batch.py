"""What travels through the engine: requests in, batches through, tokens out; and what is counted on the way."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a client asked of the tokens to come; a prefill instance makes the first, and slowly the rest."""

    max_tokens: int = 1
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    seed: int | None = None
    num_logprobs: int | None = None  # None: not wanted; 0: the chosen token's alone
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt. `token_ids` is int32 little-endian, or empty where only the length matters (virtual time)."""

    request_id: str
    num_tokens: int
    arrival_s: float
    token_ids: bytes = b""
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values stay in memory while its answer is decoded; none for a single token.

        Room for the whole answer is taken at the start, so that no decode step can fail for want of it. The last
        token is never attended.
        """
        return 0 if self.sampling.max_tokens == 1 else self.num_tokens + self.sampling.max_tokens - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests prefilled together by one DP group."""

    requests: tuple[Request, ...]

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all its requests."""
        return sum(request.num_tokens for request in self.requests)


@dataclass(slots=True)
class Stamps:
    """Where a batch's time went inside its DP group, in seconds (the parts of a TTFT, 5.3)."""

    attention_s: float = 0.0  # computing on this group
    dispatch_s: float = 0.0  # writing rows and waiting for room in MoE devices (back-pressure)
    combine_s: float = 0.0  # waiting for expert results
    total_s: float = 0.0  # from admission to the first token; the rest is the other slot's turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One generated token of one request."""

    request_id: str
    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: str | None = None  # "stop", "length", or None while more follow


@dataclass(slots=True)
class Duty:
    """Totals since the start of one device: the numerator of its duty cycle. Its compute stream alone writes."""

    compute_s: float
    num_items: int  # one layer of one batch each
    num_rows: int  # attention: tokens times layers; MoE: (token, expert) pairs

    @classmethod
    def zero(cls) -> Duty:
        """Before the first item."""
        return cls(0.0, 0, 0)

    def add(self, seconds: float, num_rows: int) -> None:
        """Count one item."""
        self.compute_s += seconds
        self.num_items += 1
        self.num_rows += num_rows
