"""The functions of a layer on CPUs."""

from __future__ import annotations

from typing import Final

import torch

from asap_ray.models import fused, gqa, rope
from asap_ray.models.kernels import Kernels


class HostKernels:
    """See `Kernels`; tensors of this process's memory."""

    device = torch.device("cpu")
    rms_norm = staticmethod(fused.rms_norm)
    swiglu = staticmethod(fused.swiglu)
    norm_and_rotate_ = staticmethod(fused.norm_and_rotate_)
    rotate_ = staticmethod(rope.rotate_)
    rotate_pairs_ = staticmethod(rope.rotate_pairs_)
    attend = staticmethod(gqa.attend)


HOST: Final[Kernels] = HostKernels()
