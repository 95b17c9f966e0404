"""Operators of torch-npu as its documentation states them, in plain PyTorch, under their own schemas.

`SCHEMAS` are those of the installed wheel, which tests/ascend/test_torch_npu.py compares.
"""

# Shapes: N query heads, G key-value heads, n new tokens of m, D head_dim, V width of a value, R rows.

from __future__ import annotations

from typing import Any, Final

import torch

_NEVER: Final = 2147483647

SCHEMAS: Final = {
    "npu_rms_norm": "(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07) -> (Tensor, Tensor)",
    "npu_swiglu": "(Tensor input, int dim=-1) -> Tensor",
    "npu_rotary_mul": '(Tensor input, Tensor r1, Tensor r2, str rotary_mode="half", Tensor? rotate=None) -> Tensor',
    "npu_fusion_attention": (
        "(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None, "
        "Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., "
        f"int pre_tockens={_NEVER}, int next_tockens={_NEVER}, int inner_precise=0, int[]? prefix=None, "
        "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
        'bool sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, '
        "int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
    ),
    "npu_fused_infer_attention_score": (
        "(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None, "
        "SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
        "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
        "Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
        "Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, "
        "Tensor? value_antiquant_offset=None, Tensor? block_table=None, Tensor? query_padding_size=None, "
        "Tensor? kv_padding_size=None, Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
        "SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, "
        "Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1., "
        f"int pre_tokens={_NEVER}, int next_tokens={_NEVER}, "
        'str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, '
        "int antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0, bool softmax_lse_flag=False) "
        "-> (Tensor, Tensor)"
    ),
    "npu_grouped_matmul": (
        "(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]? offset=None, "
        "Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None, "
        "Tensor? group_list=None, Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, "
        "Tensor[]? activation_quant_offset=None, int? split_item=0, int? group_type=None, int? group_list_type=0, "
        "int? act_type=0, int[]? tuning_config=None, int? output_dtype=None, int? x_dtype=None, "
        "int? weight_dtype=None, int? scale_dtype=None, int? per_token_scale_dtype=None) -> Tensor[]"
    ),
}


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled to unit root mean square, and the scale."""
    scale = (x.float().pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
    return (x.float() * scale * gamma.float()).to(x.dtype), scale


def swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The first half decides how much of the second passes."""
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def rotary_mul(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half") -> torch.Tensor:
    """Four dimensions, cosines and sines as wide as a head; its halves are turned, or its neighbours."""
    assert (x.dim(), r1.dim(), r1.shape[-1]) == (4, 4, x.shape[-1])
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        return r1 * x + r2 * torch.cat((-second, first), -1)
    assert rotary_mode == "interleave"
    even, odd = x[..., ::2], x[..., 1::2]
    return r1 * x + r2 * torch.stack((-odd, even), -1).flatten(-2)


def _attention(
    query_1NnD: torch.Tensor, key_1GmD: torch.Tensor, value_1GmV: torch.Tensor, scale: float, mask: dict[str, Any]
) -> torch.Tensor:
    assert query_1NnD.is_contiguous()
    assert key_1GmD.is_contiguous()
    assert value_1GmV.is_contiguous()
    share = query_1NnD.shape[1] // key_1GmD.shape[1]
    key_1NmD, value_1NmV = (each.repeat_interleave(share, 1).float() for each in (key_1GmD, value_1GmV))
    scores_1Nnm = query_1NnD.float() @ key_1NmD.mT * scale
    num_new, num_keys = scores_1Nnm.shape[-2:]
    if mask["atten_mask"] is not None:
        assert mask["sparse_mode"] == 3
        assert mask["atten_mask"].equal(torch.ones(2048, 2048, dtype=torch.bool).triu(1))
        hidden_nm = torch.ones(num_new, num_keys, dtype=torch.bool).triu(num_keys - num_new + 1)
        scores_1Nnm = scores_1Nnm.masked_fill(hidden_nm, -torch.inf)
    return (scores_1Nnm.softmax(-1) @ value_1NmV).to(query_1NnD.dtype)


def fusion_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, input_layout: str, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """The operator of training: every float type, values narrower than keys."""
    _, _, atten_mask, scale, *rest = (*rest, *(None,) * 12)[:12]  # as the schema has them, up to sparse_mode
    assert (input_layout, head_num) == ("BNSD", query.shape[1])
    assert value.shape[-1] <= key.shape[-1]
    mask = {"atten_mask": atten_mask, "sparse_mode": rest[-1]}
    none = torch.empty(0)
    return _attention(query, key, value, scale, mask), none, none, none, 0, 0, 0


def fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    input_layout: str = "BSH",
    scale: float = 1.0,
    atten_mask: torch.Tensor | None = None,
    sparse_mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator of inference: 16-bit types, keys and values of one width."""
    assert query.dtype in (torch.bfloat16, torch.float16)
    assert key.shape == value.shape
    assert (input_layout, num_heads, num_key_value_heads) == ("BNSD", query.shape[1], key.shape[1])
    mask = {"atten_mask": atten_mask, "sparse_mode": sparse_mode}
    return _attention(query, key, value, scale, mask), torch.empty(0)


def grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    *,
    group_list: torch.Tensor,
    split_item: int,
    group_type: int,
    group_list_type: int,
) -> list[torch.Tensor]:
    """Rows of one tensor, one matrix a group, counts of rows."""
    assert (len(x), len(weight), split_item, group_type, group_list_type) == (1, 1, 3, 0, 1)
    assert group_list.dtype is torch.int64
    parts = x[0].split(group_list.tolist())
    return [torch.cat([part @ matrix for part, matrix in zip(parts, weight[0], strict=True)])]


def define() -> torch.library.Library:
    """`torch.ops.npu` on CPU tensors, in a process without torch-npu, for as long as the result lives."""
    library = torch.library.Library("npu", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
        library.impl(name, globals()[name.removeprefix("npu_")], "CPU")
    return library
