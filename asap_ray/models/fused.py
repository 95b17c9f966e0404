"""Attention and what stands between matrix products, in native code."""

# Shapes: S tokens, H hidden, R rows, I intermediate, J = 2 I, C columns of all heads, D head_dim, F = D / 2,
#         n tokens of one request, m of it so far, N query heads, G heads of keys and values, V value dimensions.

from __future__ import annotations

from typing import Any

import torch

from asap_ray import _native


def array_of(rows: torch.Tensor) -> Any:
    """Rows as numpy sees them; numpy has no bfloat16, so 16-bit types cross as uint16."""
    return (rows if rows.dtype is torch.float32 else rows.view(torch.uint16)).numpy()


def _row_type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def swiglu(gate_up_RJ: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of the two halves, [R, I]."""
    out_RI = gate_up_RJ.new_empty(len(gate_up_RJ), gate_up_RJ.shape[1] // 2)
    _native.swiglu(array_of(out_RI), array_of(gate_up_RJ), _row_type(gate_up_RJ.dtype))
    return out_RI


def rms_norm(
    x_SH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Scale rows of float32 to unit root mean square, then by `weight`, in float32; [S, H] of type `dtype`."""
    out_SH = torch.empty(x_SH.shape, dtype=dtype)
    _native.rms_norm(array_of(out_SH), x_SH.numpy(), weight_H.numpy(), eps, _row_type(dtype))
    return out_SH


def norm_and_rotate_(
    qkv_SC: torch.Tensor,
    norms_D: tuple[torch.Tensor, torch.Tensor],
    angles_SF: tuple[torch.Tensor, torch.Tensor],
    num_heads: tuple[int, int],
    eps: float,
) -> None:
    """RMS norm of each query and key head, then rotary embedding, in place and in float32 between.

    Args:
        qkv_SC: heads of queries, keys and values, one behind the other.
        norms_D: weights of the queries' and of the keys' norm, float32.
        angles_SF: cosines and sines, float32; pairs are (d, d + F).
        num_heads: of queries, and of keys.
        eps: of the norm.
    """
    query_norm_D, key_norm_D, cos_SF, sin_SF = (each.numpy() for each in (*norms_D, *angles_SF))
    qkv, row_type = array_of(qkv_SC), _row_type(qkv_SC.dtype)
    _native.norm_and_rotate(qkv, query_norm_D, key_norm_D, cos_SF, sin_SF, *num_heads, eps, row_type)


def attend_in_panels(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmV: torch.Tensor) -> torch.Tensor:
    """Softmax attention of the last n of m tokens, float32, [n, N, V]; no matrix of all scores exists."""
    num_new, num_heads, head_dim = query_nND.shape
    out_nNV = query_nND.new_empty(num_new, num_heads, value_GmV.shape[-1])
    query, key, value = (each.numpy() for each in (query_nND.transpose(0, 1), key_GmD, value_GmV))
    _native.attend(out_nNV.numpy(), query, key, value, head_dim**-0.5, torch.get_num_threads())
    return out_nNV
