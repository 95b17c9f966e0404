"""The prompts that dies and host are compared by."""

from __future__ import annotations

import array

from asap_ray.batch import Batch, Request

PROMPTS = ([5, 7, 9], [21, 3])


def batch() -> Batch:
    """Both in one batch, each for its first token."""
    requests = []
    for n, prompt in enumerate(PROMPTS):
        ids = array.array("i", prompt).tobytes()
        requests.append(Request(request_id=str(n), num_tokens=len(prompt), arrival_s=0.0, token_ids=ids))
    return Batch(tuple(requests))
