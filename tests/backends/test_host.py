"""What crosses between shared memory and torch."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from asap_ray.backends.host import HostMoEComm, tensor_of
from asap_ray.backends.threads import drive
from tests.csrc.world import World


def test_no_rows_are_a_tensor_that_kernels_take() -> None:
    """A zero-row item reaches the grouped GEMM, which wants the strides numpy does not keep (seen with D=1 T=2 E=2)."""
    rows_RH = tensor_of(np.empty((0, 64), np.float32), torch.float32)
    weights_EHI = torch.zeros(2, 64, 8)

    assert torch._grouped_mm(rows_RH, weights_EHI, offs=torch.zeros(2, dtype=torch.int32)).shape == (0, 8)


def test_sixteen_bit_rows_keep_their_values() -> None:
    """bfloat16 crosses as uint16, bit for bit."""
    rows_RH = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)

    assert tensor_of(rows_RH.view(torch.uint16).numpy(), torch.bfloat16).tolist() == [[1.5, -2.0]]


def test_half_a_message_does_not_end_a_device(caplog: pytest.LogCaptureFixture) -> None:
    """Rank 1 of group 0 is stuck: at the deadline the device says so, and goes on to serve group 1."""
    world = World(dp_groups=2, tp=2)
    world.send(world.tokens(2), i=0, j=0)
    comm = HostMoEComm(world.devices[0], torch.float32, deadline_s=0.05)
    has_said = threading.Event()
    caplog.handler.addFilter(lambda _: has_said.set() or True)

    def send() -> None:
        has_said.wait(20)
        for j in (0, 1):
            world.send(world.tokens(2), i=1, j=j)

    sender = threading.Thread(target=send)
    sender.start()
    group = drive(comm.dispatch_recv()).dp_group
    sender.join()

    assert group == 1
    assert "MoE device 0 waited 0.05 s for group 0 rank 1 slot 0" in caplog.messages[0]
