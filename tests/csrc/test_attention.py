"""Native causal attention is softmax in float64, whatever the lengths, widths and heads."""

# Shapes: n queries of m tokens, N heads of queries, G of keys and values, D their width, V that of values.

from __future__ import annotations

import numpy as np
import pytest
import torch

from asap_ray import _native
from asap_ray.models.fused import attend_in_panels
from tests.csrc.team import needs_a_team


def random(*shape: int, seed: int) -> torch.Tensor:
    """Of unit variance."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected_of(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmV: torch.Tensor) -> torch.Tensor:
    """The definition."""
    num_new, num_heads, width = query_nND.shape
    key_NmD, value_NmV = (
        each.double().repeat_interleave(num_heads // len(each), dim=0) for each in (key_GmD, value_GmV)
    )
    scores_Nnm = query_nND.double().transpose(0, 1) @ key_NmD.mT * width**-0.5
    later_nm = torch.ones(scores_Nnm.shape[1:], dtype=torch.bool).triu(scores_Nnm.shape[2] - num_new + 1)
    return (scores_Nnm.masked_fill(later_nm, -torch.inf).softmax(-1) @ value_NmV).transpose(0, 1)


@pytest.mark.parametrize(
    ("num_new", "num_tokens"),
    [(1, 1), (2, 2), (14, 14), (15, 31), (33, 33), (1, 257), (3, 256), (57, 300), (300, 300), (70, 1000)],
)
@pytest.mark.parametrize("heads", [(2, 1), (6, 3), (4, 4)])
@pytest.mark.parametrize(("width", "value_width"), [(16, 16), (24, 20), (64, 33)])
def test_every_query_sees_itself_and_what_came_before(
    num_new: int, num_tokens: int, heads: tuple[int, int], width: int, value_width: int
) -> None:
    """Around tiles, lines, panels, blocks of keys; with and without a past."""
    query_nND = 2 * random(num_new, heads[0], width, seed=0)
    key_GmD = 2 * random(heads[1], num_tokens, width, seed=1)
    value_GmV = random(num_tokens, heads[1], value_width, seed=2).transpose(0, 1)

    mixed_nNV = attend_in_panels(query_nND, key_GmD, value_GmV)

    expected_nNV = expected_of(query_nND, key_GmD, value_GmV)
    torch.testing.assert_close(mixed_nNV.double(), expected_nNV, rtol=1e-5, atol=1e-5)


@needs_a_team
@pytest.mark.parametrize("num_threads", [2, 3])
@pytest.mark.parametrize(
    ("heads", "num_new", "num_tokens"),
    [((4, 4), 200, 300), ((8, 1), 200, 300), ((20, 1), 3, 4000), ((10, 5), 60, 1000)],
)
def test_threads_share_the_queries(heads: tuple[int, int], num_new: int, num_tokens: int, num_threads: int) -> None:
    """Several threads give the bits of one: with fewer heads of keys than threads, and few new tokens, too."""
    query = random(heads[0], num_new, 48, seed=0).numpy()
    key, value = (random(heads[1], num_tokens, width, seed=width).numpy() for width in (48, 40))
    one, several = np.empty((2, num_new, heads[0], 40), np.float32)
    assert heads[0] * num_new * num_tokens * (48 + 40) >= _native.SHAREABLE

    _native.attend(one, query, key, value, 0.1, 1)
    _native.attend(several, query, key, value, 0.1, num_threads)

    assert np.array_equal(one, several)


def test_scores_far_apart() -> None:
    """A winner takes all, though exponentials of the others leave float32."""
    query_nND, key_GmD = torch.full((3, 1, 4), 50.0), torch.tensor([[[-50.0] * 4, [50.0] * 4, [-50.0] * 4]])
    value_GmV = torch.tensor([[[1.0], [2.0], [3.0]]])

    assert attend_in_panels(query_nND, key_GmD, value_GmV)[:, 0, 0].tolist() == [1.0, 2.0, 2.0]


def test_keys_of_another_width_are_refused() -> None:
    """Before anything is read."""
    query, key = np.zeros((2, 3, 8), np.float32), np.zeros((1, 3, 9), np.float32)

    with pytest.raises(ValueError, match=r"query \[2, 3, 8\] does not fit key \[1, 3, 9\]"):
        _native.attend(np.zeros((3, 2, 9), np.float32), query, key, key, 1.0, 1)
