"""What names a block of tokens: a digest of its tokens and of everything before it."""

from __future__ import annotations

import hashlib
from itertools import accumulate
from typing import Final

TOKEN_BYTES: Final = 4
"""Token ids are int32, little-endian (`Request.token_ids`)."""


def root_key(fingerprint: str, salt: str = "") -> bytes:
    """What the first block of every prompt follows: another model or another salt shares nothing.

    Args:
        fingerprint: of configuration and weights (`Model.fingerprint`).
        salt: of those who may share with each other (`cache_salt` of a request); a shared prefix answers sooner, so
            without one a client can find out what others have asked.
    """
    parts = (hashlib.sha256(part.encode()).digest() for part in (fingerprint, salt))
    return hashlib.sha256(b"".join(parts)).digest()


def block_keys(token_ids: bytes, block_size: int, root: bytes) -> tuple[bytes, ...]:
    """The key of each full block of a prompt, 32 bytes; tokens after the last full block have none.

    SHA-256 of the key before it and of the block's tokens: equal keys are equal prefixes, from the first token on.
    """
    num_bytes = block_size * TOKEN_BYTES
    blocks = (token_ids[start : start + num_bytes] for start in range(0, len(token_ids) - num_bytes + 1, num_bytes))
    keys = accumulate(blocks, lambda before, block: hashlib.sha256(before + block).digest(), initial=root)
    return tuple(keys)[1:]
