"""Rotary position embeddings (RoPE), plain or with YaRN: the angles, always in float32."""

# Shapes: S tokens, N heads, D head_dim, F = dim / 2 frequencies.

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [S, F] each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """How frequencies are stretched to longer contexts: YaRN (Peng et al. 2023), with DeepSeek's `mscale`."""

    factor: float
    original_positions: float  # of the training before the stretch
    beta_fast: float = 32.0  # turns over the original context beyond which a frequency stays as it is
    beta_slow: float = 1.0  # and below which it is divided by `factor`
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float = 0.0  # of cosines and sines; 0: from the scales above

    def _magnitude(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    @property
    def rotation_scale(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.attention_factor:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def softmax_scale(self) -> float:
        """What latent attention multiplies its scores by; 1 without `mscale_all_dim`."""
        return self._magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def stretch(self, frequencies_F: torch.Tensor, theta: float) -> torch.Tensor:
        """Fast frequencies as they are, slow ones divided by `factor`, a linear ramp between."""
        num = len(frequencies_F)

        def index_of(turns: float) -> float:
            return num * math.log(self.original_positions / (turns * 2 * math.pi)) / math.log(theta)

        low = max(math.floor(index_of(self.beta_fast)), 0)
        high = min(math.ceil(index_of(self.beta_slow)), 2 * num - 1)
        ramp_F = (torch.arange(num, dtype=torch.float32) - low) / (high - low or 1e-3)
        return torch.lerp(frequencies_F, frequencies_F / self.factor, ramp_F.clamp(0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The rotation of the first `dim` dimensions of a head."""

    dim: int
    theta: float
    yarn: Yarn | None = None

    def angles_at(self, positions_S: torch.Tensor) -> Angles:
        """Cosines and sines at given positions: plain angles are position * theta^(-2f / dim)."""
        frequencies_F = self.theta ** -(torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim)
        if self.yarn is None:
            angles_SF = positions_S[:, None].float() * frequencies_F
            return angles_SF.cos(), angles_SF.sin()
        angles_SF = positions_S[:, None].float() * self.yarn.stretch(frequencies_F, self.theta)
        scale = self.yarn.rotation_scale
        return angles_SF.cos() * scale, angles_SF.sin() * scale


def rotate_(heads_SND: torch.Tensor, angles_SF: Angles) -> None:
    """Turn the first 2F dimensions of each head in place, in float32 between; pairs are (f, f + F)."""
    cos_S1F, sin_S1F = (each[:, None] for each in angles_SF)
    num = cos_S1F.shape[-1]
    first_SNF, second_SNF = heads_SND[..., :num], heads_SND[..., num : 2 * num]
    turned_SNF = first_SNF * cos_S1F - second_SNF * sin_S1F
    second_SNF.copy_(second_SNF * cos_S1F + first_SNF * sin_S1F)
    first_SNF.copy_(turned_SNF)


def rotate_pairs_(heads_SND: torch.Tensor, angles_SF: Angles) -> None:
    """Turn all 2F dimensions of each head in place, in float32 between; pairs are (2f, 2f + 1): complex numbers."""
    wide_SND = heads_SND.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    turned_SNF = torch.view_as_complex(wide_SND.view(*heads_SND.shape[:-1], -1, 2))
    turned_SNF *= torch.complex(*angles_SF)[:, None]
    heads_SND.copy_(wide_SND)
