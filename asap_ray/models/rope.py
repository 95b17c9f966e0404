"""Rotary position embeddings (RoPE) and the RMS norm, always in float32."""

# Shapes: S tokens, N heads, D head_dim, F = D / 2 frequencies.

from __future__ import annotations

from dataclasses import dataclass

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale the last dimension to unit root mean square, then by `weight`; float32 whatever comes in."""
    x = x.float()
    mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_() / x.shape[-1]
    return (x * torch.rsqrt(mean_square + eps)).mul_(weight)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of a pass: one per token and frequency."""

    cos_SF: torch.Tensor
    sin_SF: torch.Tensor

    def apply(self, x_SND: torch.Tensor) -> torch.Tensor:
        """Turn each pair (d, d + F) of every head by its token's angle."""
        cos, sin = self.cos_SF[:, None], self.sin_SF[:, None]
        first, second = x_SND.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotation_at(positions_S: torch.Tensor, head_dim: int, theta: float) -> Rotation:
    """Angles at given positions: position * theta^(-2f / D)."""
    frequencies_F = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles_SF = positions_S[:, None].float() * frequencies_F
    return Rotation(angles_SF.cos(), angles_SF.sin())
