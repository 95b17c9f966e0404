"""What crosses between shared memory and torch."""

from __future__ import annotations

import numpy as np
import torch

from asap_ray.backends.host import tensor_of


def test_no_rows_are_a_tensor_that_kernels_take() -> None:
    """A zero-row item reaches the grouped GEMM, which wants the strides numpy does not keep (seen with D=1 T=2 E=2)."""
    rows_RH = tensor_of(np.empty((0, 64), np.float32), torch.float32)
    weights_EHI = torch.zeros(2, 64, 8)

    assert torch._grouped_mm(rows_RH, weights_EHI, offs=torch.zeros(2, dtype=torch.int32)).shape == (0, 8)


def test_sixteen_bit_rows_keep_their_values() -> None:
    """bfloat16 crosses as uint16, bit for bit."""
    rows_RH = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)

    assert tensor_of(rows_RH.view(torch.uint16).numpy(), torch.bfloat16).tolist() == [[1.5, -2.0]]
