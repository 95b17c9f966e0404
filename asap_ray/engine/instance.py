"""A whole prefill instance in one runtime: every loop side by side (3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from asap_ray.engine import attention, experts
from asap_ray.protocol import Runtime


async def serve(
    runtime: Runtime, ranks: Sequence[attention.AttentionRank], devices: Sequence[experts.MoEDevice]
) -> None:
    """Run D * T attention loops and E MoE loops until one fails or the runtime closes.

    Actors run one loop each instead; nothing but the placement differs.
    """
    await runtime.gather(*map(attention.serve, ranks), *map(experts.serve, devices))
