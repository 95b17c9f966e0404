"""What travels through the engine: requests in, batches through, tokens out; and what is counted on the way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


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
    """One prompt, or a chunk of one. `token_ids` is int32 little-endian, or empty where only the length matters."""

    request_id: str
    num_tokens: int  # to compute in this pass
    arrival_s: float
    token_ids: bytes = b""
    sampling: Sampling = field(default_factory=Sampling)
    past_tokens: int = 0  # of the same prompt, in earlier chunks: its group holds their keys and values
    future_tokens: int = 0  # of the same prompt, in later chunks: no token is sampled before the last
    table: tuple[int, ...] = ()  # its blocks in the cache of its group, for prompt and answer; none: kept for this pass
    cached_tokens: int = 0  # of `past_tokens`, those found in that cache: its first chunk begins behind them

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return self.past_tokens + self.num_tokens + self.future_tokens

    @property
    def is_first(self) -> bool:
        """Whether nothing of the prompt was computed for this request before."""
        return self.past_tokens == self.cached_tokens

    @property
    def is_whole(self) -> bool:
        """Whether this is all that is to be computed of a prompt, not a chunk of it."""
        return self.is_first and not self.future_tokens

    @property
    def total_tokens(self) -> int:
        """Prompt and longest answer, but for its last token, which is never attended."""
        return self.prompt_tokens + self.sampling.max_tokens - 1

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values stay in memory after this pass; none for a whole prompt and a single token.

        Room for the whole answer is taken at the start, so that no decode step can fail for want of it.
        """
        return 0 if self.is_whole and self.sampling.max_tokens == 1 else self.total_tokens

    def chunk(self, start: int, stop: int) -> Request:
        """Tokens [start, stop) of its prompt, which are among those this request computes."""
        first, end = self.past_tokens, self.past_tokens + self.num_tokens
        assert first <= start < stop <= end, f"chunk {start}:{stop} of tokens {first}:{end}"
        return replace(
            self,
            num_tokens=stop - start,
            token_ids=self.token_ids[4 * (start - first) : 4 * (stop - first)],
            past_tokens=start,
            future_tokens=self.prompt_tokens - stop,
        )

    def behind(self, cached_tokens: int) -> Request:
        """What is left of a whole prompt whose first `cached_tokens` are in a cache."""
        return replace(self.chunk(cached_tokens, self.num_tokens), cached_tokens=cached_tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests prefilled together by one DP group."""

    requests: tuple[Request, ...]
    forget: tuple[str, ...] = ()  # prompts whose next chunks will not come: their keys and values go before it starts
    cache_life: int = 0  # of its frontend's caches for its group: tables of an earlier one mean nothing any more

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
    finish_reason: str | None = None  # "stop", "length", "abort" if nobody waits for more, or None while more follow


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
