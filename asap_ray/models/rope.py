"""Rotary position embeddings (RoPE): the angles, always in float32."""

# Shapes: S tokens, D head_dim, F = D / 2 frequencies.

from __future__ import annotations

import torch


def rotation_at(positions_S: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines at given positions, [S, F] each: angles are position * theta^(-2f / D)."""
    frequencies_F = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles_SF = positions_S[:, None].float() * frequencies_F
    return angles_SF.cos(), angles_SF.sin()
