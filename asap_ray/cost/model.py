"""Seconds of everything an instance does in one layer: closed forms over a batch's lengths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from asap_ray.batch import Batch, Request
from asap_ray.cost.hardware import Hardware
from asap_ray.cost.shapes import Shape

METADATA_BYTES: Final = 512
"""Beside each dispatched row: 8 x (7168 + 512) B is the paper's 63 MB per 1k tokens (5.4)."""

RESULT_BYTES: Final = 2
"""A result row travels in 16 bits, one per expert (Table 2)."""

P2P_SLOWDOWN: Final = 6.25
"""Slope of synchronous P2P over asynchronous dispatch: 4x at 1k and 5.8x at 8k tokens (5.4)."""

P2P_HANDSHAKES_S: Final = 31.4e-6
"""All handshakes of one P2P dispatch."""


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """One model on one kind of device with T ranks a group and E MoE devices. Everything is per layer."""

    shape: Shape
    hardware: Hardware
    tp: int
    moe_devices: int

    def attention_s(self, requests: Iterable[Request]) -> float:
        """Attention of one batch on each of its T ranks: linear in tokens, quadratic in each length (2.2.1).

        With `past_tokens` h of a prompt's s, sums of s - h and s^2 - h^2.
        """
        num_tokens = num_pairs = 0
        for request in requests:
            past, now = request.past_tokens, request.num_tokens
            num_tokens += now
            num_pairs += now * (2 * past + now)
        if not num_tokens:
            return 0.0
        return self.hardware.attention_launch_s + self.token_s * num_tokens + self.pair_s * num_pairs

    @cached_property
    def token_s(self) -> float:
        """Projections of one token."""
        return self.shape.token_flops / self.tp / self.hardware.linear_flops_s

    @cached_property
    def pair_s(self) -> float:
        """Half a square token: s^2 of a prompt has s^2 / 2 causal pairs."""
        return self.shape.pair_flops / 2 / self.tp / self.hardware.pair_flops_s

    @cached_property
    def weights_s(self) -> float:
        """Reading one layer's experts of one MoE device: the plateau of Figure 3b."""
        experts = self.shape.num_experts * self.shape.expert_params * self.shape.weight_bytes
        return experts / self.moe_devices / self.hardware.hbm_bytes_s

    @cached_property
    def moe_token_s(self) -> float:
        """One token's rows on one device above the inflection point, under balance."""
        return self.shape.moe_token_flops / self.moe_devices / self.hardware.moe_flops_s

    def moe_s(self, num_tokens: float, load: float = 1.0) -> float:
        """The experts of one device for a batch: flat up to the inflection point, then linear (2.2.2).

        `load` is the device's share of the batch's rows over a balanced one's.
        """
        return max(self.weights_s, self.moe_token_s * num_tokens * load) if num_tokens else 0.0

    @property
    def inflection_tokens(self) -> float:
        """Where the plateau ends; it does not depend on E."""
        return self.weights_s / self.moe_token_s

    @cached_property
    def _dispatch_token_s(self) -> float:
        """A row and its metadata for each expert of one token, over one device's link."""
        return self.shape.top_k * (self.shape.hidden + METADATA_BYTES) / self.hardware.link.bytes_s

    @cached_property
    def _combine_token_s(self) -> float:
        """A result row from each expert of one token, over one device's link."""
        return self.shape.top_k * self.shape.hidden * RESULT_BYTES / self.hardware.link.bytes_s

    def dispatch_s(self, num_tokens: int) -> float:
        """One rank writes its rows, a copy an expert, to every MoE device at once."""
        return self.hardware.link.launch_s + self._dispatch_token_s * num_tokens / self.tp

    def combine_s(self, num_tokens: int) -> float:
        """Until all results of a batch are at its T ranks: their links are the narrow end."""
        return self.hardware.link.launch_s + self._combine_token_s * num_tokens / self.tp

    def dispatch_recv_s(self, num_tokens: int) -> float:
        """One MoE device copies a batch's rows to its own memory."""
        return self.hardware.link.launch_s + self._dispatch_token_s * num_tokens / self.moe_devices

    def combine_send_s(self, num_tokens: int) -> float:
        """One MoE device writes its results of a batch."""
        return self.hardware.link.launch_s + self._combine_token_s * num_tokens / self.moe_devices

    def p2p_dispatch_s(self, num_tokens: int) -> float:
        """The same dispatch by synchronous sends, one device after another, receivers ready (5.4)."""
        return P2P_HANDSHAKES_S + P2P_SLOWDOWN * self._dispatch_token_s * num_tokens / self.tp

    def prompt_s(self, num_tokens: int) -> float:
        """What a prompt alone takes of its group's attention stream, over all layers: dispatch included."""
        layer_s = self.hardware.attention_launch_s + self.token_s * num_tokens + self.pair_s * num_tokens**2
        return self.shape.num_layers * (layer_s + self.dispatch_s(num_tokens))

    def batch_s(self, batch: Batch) -> float:
        """What a batch takes of its group's attention stream, over all layers."""
        return self.shape.num_layers * (self.attention_s(batch.requests) + self.dispatch_s(batch.num_tokens))
