"""Keys of blocks: equal for equal prefixes, and for nothing else."""

from __future__ import annotations

import hashlib

import numpy as np

from asap_ray.kvcache.block_keys import block_keys, root_key

ROOT = root_key("model")


def ids(*token_ids: int) -> bytes:
    """Token ids as a request carries them."""
    return np.array(token_ids, np.int32).tobytes()


def test_a_key_is_the_digest_of_the_one_before_and_of_the_tokens() -> None:
    """SHA-256, so that two prefixes with one key are nothing to reckon with."""
    first, second = block_keys(ids(1, 2, 3, 4), 2, ROOT)

    assert first == hashlib.sha256(ROOT + ids(1, 2)).digest()
    assert second == hashlib.sha256(first + ids(3, 4)).digest()


def test_only_full_blocks_have_keys() -> None:
    """Five tokens are two blocks of two."""
    assert len(block_keys(ids(1, 2, 3, 4, 5), 2, ROOT)) == 2


def test_a_prompt_shorter_than_a_block_has_none() -> None:
    """Nothing of it is shared."""
    assert block_keys(ids(1), 2, ROOT) == ()


def test_equal_tokens_behind_another_prefix_have_another_key() -> None:
    """Keys and values depend on everything before them."""
    assert block_keys(ids(1, 2, 3, 4), 2, ROOT)[1] != block_keys(ids(9, 2, 3, 4), 2, ROOT)[1]


def test_a_longer_prompt_begins_with_the_keys_of_its_prefix() -> None:
    """That is how a prefix is found."""
    assert block_keys(ids(1, 2, 3, 4, 5, 6), 2, ROOT)[:2] == block_keys(ids(1, 2, 3, 4), 2, ROOT)


def test_models_and_salts_share_nothing() -> None:
    """Four roots of two models and two salts are four; and a salt is no part of a model's name."""
    roots = {root_key(model, salt) for model in ("m", "n") for salt in ("", "s")} | {root_key("ms"), root_key("ns")}

    assert len(roots) == 6
