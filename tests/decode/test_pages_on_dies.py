"""Pages that lie on dies are handed to nobody."""

from __future__ import annotations

import pytest

from asap_ray.actors.handoff import HandOff
from asap_ray.config import ServeConfig
from asap_ray.errors import RequestError
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.transfer_params import RemoteDecode
from asap_ray.spec import ParallelSpec


def test_a_prompt_for_a_decode_instance_is_refused() -> None:
    """Before it is computed: its blocks could not be pulled."""
    alone = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)
    hand_off = HandOff(ServeConfig(model="m", device="npu", parallel=alone), "model", lambda: None)
    hand_off.join(0, PrefixCache(BlockPool(num_blocks=4, block_size=4)), ranks=())

    with pytest.raises(RequestError, match="KV pages are on dies here"):
        hand_off.check([], RemoteDecode(do_remote_decode=True))
