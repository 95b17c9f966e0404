"""What a device does in a second, each constant with its source.

The rates are *effective*: fitted to DeepSeek-V3.2 on Ascend 910C dies, then taken as a property of the device for
every model. Some follow from facts of the paper's sections 2 to 4 alone; those marked "fitted" were found together by a
search of a throw-away simulator against sections 5.2 to 5.5, once, before this product (docs/evaluation.md says which,
and what they decide).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from asap_ray.cost.shapes import deepseek_v32
from asap_ray.errors import ConfigError

_V32: Final = deepseek_v32()
_TP: Final = 4  # of the profile the fit is made of


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How bytes travel between two devices."""

    name: str
    launch_s: float  # of one primitive, on the stream that calls it
    latency_s: float  # until the receiver sees a flag, beyond the bytes
    bytes_s: float  # of one device, each way
    is_offloaded: bool  # a NIC moves the bytes: the calling stream goes on after the launch


SUPERNODE: Final = Link(name="supernode", launch_s=30e-6, latency_s=0.0, bytes_s=400e9, is_offloaded=False)
"""400 GB/s a pair, microseconds of latency (4.1), inside the launch: under 0.1 ms at 512 tokens (5.4)."""

RDMA: Final = Link(name="rdma", launch_s=30e-6, latency_s=300e-6, bytes_s=50e9, is_offloaded=True)
"""Hundreds of microseconds (4.4); one 400 Gb/s NIC a device: assumed."""

ETHERNET: Final = Link(name="ethernet", launch_s=30e-6, latency_s=1e-3, bytes_s=12.5e9, is_offloaded=True)
"""100 Gb/s a device, a millisecond: assumed."""

LINKS: Final = {link.name: link for link in (SUPERNODE, RDMA, ETHERNET)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device."""

    name: str
    linear_flops_s: float  # attention projections
    pair_flops_s: float  # attention cores and indexer
    moe_flops_s: float  # grouped GEMM above the inflection point
    hbm_bytes_s: float  # below it the experts' weights are read once an item (2.2.2)
    hbm_bytes: int
    attention_launch_s: float  # fixed part of one attention layer
    moe_launch_s: float  # host dispatch of one MoE layer without the super kernel (3.4.2)
    link: Link
    request_overhead_s: float  # outside the layers, in parallel to others
    step_request_overhead_s: float  # the same in a synchronous system
    step_overhead_s: float  # between two steps of a synchronous system, nothing runs


def ascend_910c() -> Hardware:
    """One die of an Ascend 910C in a CloudMatrix384 supernode, running W8A8."""
    return Hardware(
        name="ascend-910c",
        linear_flops_s=_V32.token_flops / _TP / 2.9e-7,  # 0.29 us a token at TP 4; 347 TFLOP/s, fitted
        pair_flops_s=_V32.pair_flops / 2 / _TP / 3.2942e-11,  # from 4.2x for 1 x 32k against 32 x 1k (2.2.1)
        moe_flops_s=_V32.moe_token_flops / 16 / 1.8e-7,  # fitted; inflection at 2447 tokens, 2.2.2 says about 2k
        hbm_bytes_s=1.6e12,  # public figure of the die
        hbm_bytes=64 * 10**9,  # 4.1
        attention_launch_s=0.10e-3,  # fitted
        moe_launch_s=0.22e-3,  # 3.4.2, 5.5.3: measured by the paper
        link=SUPERNODE,
        request_overhead_s=0.105,  # fitted: 350 ms at RPS 1 less 244 ms of kernels and transfers (5.2)
        step_request_overhead_s=0.095,  # fitted
        step_overhead_s=0.010,  # fitted
    )


HARDWARE: Final = {"ascend-910c": ascend_910c()}


def hardware_of(name: str, link: str | None = None) -> Hardware:
    """A preset by its name, with another interconnect if one is named.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in HARDWARE:
        raise ConfigError(f"unknown hardware {name!r}; presets are {', '.join(HARDWARE)}")
    if link is not None and link not in LINKS:
        raise ConfigError(f"unknown interconnect {link!r}; presets are {', '.join(LINKS)}")
    hardware = HARDWARE[name]
    return replace(hardware, link=LINKS[link]) if link else hardware
