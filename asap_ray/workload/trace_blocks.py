"""Which blocks of a trace's prompts are the same, by its `hash_ids`, and what a cache could save of them at best."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from asap_ray.workload.trace import TraceRequest


def trace_block_keys(request: TraceRequest, block_size: int) -> tuple[bytes, ...]:
    """A key for each full block of `block_size` tokens that the ids cover; equal keys are equal prefixes.

    An id stands for its tokens and for all before them, so a block is named by the id that covers its last token, and
    by where it ends. `block_size` need not divide the trace's own blocks. Blocks that no id covers have no key.
    """
    ends = [round((number + 1) * request.block_tokens) for number in range(len(request.hash_ids))]
    num_covered = min(request.input_length, ends[-1]) if ends else 0
    stops = range(block_size, num_covered + 1, block_size)
    return tuple(f"{request.hash_ids[bisect_right(ends, stop - 1)]}:{stop}".encode() for stop in stops)


def ideal_hits(requests: Sequence[TraceRequest]) -> list[int]:
    """Tokens of each prompt that came before, were everything kept for ever: the trace's own blocks, partial ones too.

    The longest run of its leading ids that were seen, at most the prompt.
    """
    seen: set[int] = set()
    hits = []
    for request in requests:
        ids = request.hash_ids
        run = next((number for number, hash_id in enumerate(ids) if hash_id not in seen), len(ids))
        hits.append(min(round(run * request.block_tokens), request.input_length))
        seen.update(ids)
    return hits
