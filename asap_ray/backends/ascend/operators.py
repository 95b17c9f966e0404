"""What a layer computes, by torch-npu's own operators: each function stands for one of `asap_ray/models`.

Same arguments, same results, tensors of a die. `REFERENCES` names the CPU's function beside each.
"""

# Shapes: S tokens, H hidden, N query heads, G key-value heads, D head_dim, V width of a value, F = rotated dims / 2,
#         n new tokens of m, R rows grouped by E experts, I intermediate, J = 2 I.

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from asap_ray.errors import ConfigError

REFERENCES: Final = {
    "rms_norm": "asap_ray.models.fused.rms_norm",
    "swiglu": "asap_ray.models.fused.swiglu",
    "rotate_": "asap_ray.models.rope.rotate_",
    "rotate_pairs_": "asap_ray.models.rope.rotate_pairs_",
    "attend": "asap_ray.models.gqa.attend",
    "grouped_experts": "asap_ray.models.experts.ExpertStage.super_kernel",
}

_MASK_SIZE: Final = 2048
"""Of the mask that both attention operators take for any length of a causal one."""

_CAUSAL_AT_THE_END: Final = 3
"""`sparse_mode`: the last query sees the last key, each one before it one key less."""

_WIDEST_HEAD: Final = 512
"""Of the operator of inference."""

_ONE_RESULT: Final = 3
"""`split_item`: one tensor of all groups."""

_BY_ROWS: Final = 0
"""`group_type`: rows are grouped, and each group has a matrix."""

_COUNTS: Final = 1
"""`group_list_type`: rows of each group, not where they end."""


def rms_norm(
    x_SH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """`npu_rms_norm`; see `fused.rms_norm`."""
    out_SH: torch.Tensor = torch.ops.npu.npu_rms_norm(x_SH, weight_H, eps)[0]
    return out_SH.to(dtype)


def swiglu(gate_up_RJ: torch.Tensor) -> torch.Tensor:
    """`npu_swiglu`, whose first half is the gate, too; see `fused.swiglu`."""
    out_RI: torch.Tensor = torch.ops.npu.npu_swiglu(gate_up_RJ, -1)
    return out_RI


def rotate_(heads_SND: torch.Tensor, angles_SF: tuple[torch.Tensor, torch.Tensor]) -> None:
    """`npu_rotary_mul`, whose pairs are (f, f + F), too; see `rope.rotate_`. Float32 between is the caller's choice."""
    cos_1S1D, sin_1S1D = (torch.cat((each, each), -1)[None, :, None].to(heads_SND.dtype) for each in angles_SF)
    rotated_SND = heads_SND[..., : cos_1S1D.shape[-1]]
    rotated_SND.copy_(torch.ops.npu.npu_rotary_mul(rotated_SND[None].contiguous(), cos_1S1D, sin_1S1D)[0])


def rotate_pairs_(heads_SND: torch.Tensor, angles_SF: tuple[torch.Tensor, torch.Tensor]) -> None:
    """`npu_rotary_mul` in its mode of pairs (2f, 2f + 1); see `rope.rotate_pairs_`, and `rotate_` for the type."""
    cos_1S1D, sin_1S1D = (
        torch.cat((each[..., None], each[..., None]), -1).flatten(1)[None, :, None].to(heads_SND.dtype)
        for each in angles_SF
    )
    heads_SND.copy_(torch.ops.npu.npu_rotary_mul(heads_SND[None].contiguous(), cos_1S1D, sin_1S1D, "interleave")[0])


def attend(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmV: torch.Tensor) -> torch.Tensor:
    """Softmax attention of the last n of m tokens, [n, N, V]; see `gqa.attend`.

    `npu_fused_infer_attention_score` for 16-bit types, heads of up to 512 dimensions and values as wide as keys. What
    it has not, float32, MLA's heads and latents, takes `npu_fusion_attention`.
    """
    query_1NnD = query_nND.transpose(0, 1)[None].contiguous()
    key_1GmD, value_1GmV = key_GmD[None].contiguous(), value_GmV[None].contiguous()
    scale, is_causal = query_nND.shape[-1] ** -0.5, len(query_nND) > 1
    mask: dict[str, Any] = {}
    if is_causal:
        mask = {"atten_mask": _mask(query_nND.device), "sparse_mode": _CAUSAL_AT_THE_END}
    if not _is_for_inference(query_nND, value_GmV):
        out_1NnV = torch.ops.npu.npu_fusion_attention(
            query_1NnD, key_1GmD, value_1GmV, query_nND.shape[1], "BNSD", scale=scale, **mask
        )[0]
    else:
        heads = {"num_heads": query_nND.shape[1], "num_key_value_heads": len(key_GmD), "input_layout": "BNSD"}
        out_1NnV = torch.ops.npu.npu_fused_infer_attention_score(
            query_1NnD, key_1GmD, value_1GmV, scale=scale, **heads, **mask
        )[0]
    out_NnV: torch.Tensor = out_1NnV[0]
    return out_NnV.transpose(0, 1)


def grouped_experts(
    rows_RH: torch.Tensor, num_rows_E: torch.Tensor, gate_up_EHJ: torch.Tensor, down_EIH: torch.Tensor
) -> torch.Tensor:
    """`npu_grouped_matmul` twice, in the place of our super kernel; unweighted results of rows grouped by expert.

    Args:
        rows_RH: those of expert x behind those of x - 1.
        num_rows_E: int64, on the die.
        gate_up_EHJ: [in, out], as the second matrix.
        down_EIH: see there.
    """
    return _grouped_matmul(swiglu(_grouped_matmul(rows_RH, gate_up_EHJ, num_rows_E)), down_EIH, num_rows_E)


def _grouped_matmul(rows_RI: torch.Tensor, matrix_EIJ: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
    if num_rows_E.dtype is not torch.int64:
        raise ConfigError(f"num_rows_E is {num_rows_E.dtype}; npu_grouped_matmul takes int64")
    out_RJ: torch.Tensor = torch.ops.npu.npu_grouped_matmul(
        [rows_RI],
        [matrix_EIJ],
        group_list=num_rows_E,
        split_item=_ONE_RESULT,
        group_type=_BY_ROWS,
        group_list_type=_COUNTS,
    )[0]
    return out_RJ


def _is_for_inference(query_nND: torch.Tensor, value_GmV: torch.Tensor) -> bool:
    head_dim = query_nND.shape[-1]
    return query_nND.dtype is not torch.float32 and head_dim == value_GmV.shape[-1] <= _WIDEST_HEAD


@functools.cache
def _mask(device: torch.device) -> torch.Tensor:
    """True above the diagonal: hidden. Made on the host, which has an operator for it, once for each die."""
    return torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool).triu(1).to(device)
