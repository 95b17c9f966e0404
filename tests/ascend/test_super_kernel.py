"""The super kernel on the twin against numpy and the product's own int8 stage."""

# Shapes: L layers, E experts of this device, R rows grouped by expert, H hidden, I intermediate, J = 2 I.

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asap_ray.models.int8_experts import Int8ExpertStage, Int8Table, quantise
from asap_ray.spec import RowType
from tests.ascend.devices import Devices
from tests.ascend.twin import Place, Twin
from tests.csrc.world import World, bits_of

LAYERS, EXPERTS, HIDDEN, WIDTH = 4, 7, 20, 12
BLOCKS = 3


def received(devices: Devices, layer: int) -> NDArray[np.uint8]:
    """An item with one message of nine tokens, as dispatch_recv leaves it."""
    devices.send(devices.world.tokens(9), layer=layer)
    _, item = devices.take(0)
    devices.run()
    return item


def rows_of(devices: Devices, item: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Its rows as numbers, and how many each expert has."""
    num_rows = int(item.view(np.int32)[3])
    counts_E = item[512:].view(np.int32)[:EXPERTS]
    rows = item[devices.twin.size("item_rows", devices.fields) :][: num_rows * devices.layout.row_bytes]
    dtype = np.float32 if devices.row_type is RowType.FLOAT32 else np.uint16
    return devices.floats(rows.view(dtype).reshape(num_rows, HIDDEN)), counts_E


def launch(devices: Devices, kernel: str, item: NDArray[np.uint8], table: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Run it on three blocks; the results as numbers."""
    twin = devices.twin
    num_bytes = twin.size("super_kernel_int8_bytes", HIDDEN, WIDTH) if "int8" in kernel else 0
    workspace = twin.zeros(BLOCKS * max(num_bytes, twin.size("super_kernel_bytes", WIDTH)))
    rows_RH, _ = rows_of(devices, item)
    results_RH = twin.copy(bits_of(np.zeros_like(rows_RH), devices.row_type))
    system = twin.zeros(twin.size("system_bytes"))
    tiling = twin.copy(np.zeros(64, dtype=np.int32))
    memory = devices.fields, item, results_RH, table, workspace, system, tiling, tiling, devices.status()
    row_type = {"float32": 0, "bfloat16": 1, "float16": 2}[devices.row_type.value]
    twin.launch(kernel, Place(0, num_blocks=BLOCKS), *memory, 0, WIDTH, row_type)
    devices.run()
    return devices.floats(results_RH)


def experts(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """gate_up_LEJH and down_LEHI."""
    rng = np.random.default_rng(seed)
    gate_up = rng.standard_normal((LAYERS, EXPERTS, 2 * WIDTH, HIDDEN), dtype=np.float32)
    return gate_up, rng.standard_normal((LAYERS, EXPERTS, HIDDEN, WIDTH), dtype=np.float32)


def oracle(rows_RH: NDArray[np.float32], counts_E: NDArray[np.int32], layer: int) -> NDArray[np.float32]:
    """SwiGLU of each expert on its rows, in float64."""
    gate_up_LEJH, down_LEHI = experts()
    results, start = [], 0
    for x, count in enumerate(counts_E):
        gate, up = np.split(rows_RH[start : start + count].astype(np.float64) @ gate_up_LEJH[layer, x].T, 2, axis=1)
        results.append(gate / (1 + np.exp(-gate)) * up @ down_LEHI[layer, x].T)
        start += count
    return np.concatenate(results)


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize(("row_type", "tolerance"), [(RowType.FLOAT32, 1e-5), (RowType.BFLOAT16, 0.03)])
def test_layer_and_groups_come_from_the_item(twin: Twin, layer: int, row_type: RowType, tolerance: float) -> None:
    """One launch, the same arguments for every layer; the answer is that of the layer in the message."""
    devices = Devices(twin, World(moe_devices=1, row_type=row_type, compute_type=row_type))
    gate_up_LEJH, down_LEHI = (twin.copy(to_rows(matrix, row_type)) for matrix in experts())
    none = np.zeros(1, dtype=np.float32)
    table = twin.table(
        matrix
        for n in range(LAYERS)
        for matrices in (gate_up_LEJH[n], down_LEHI[n], [none] * EXPERTS, [none] * EXPERTS)
        for matrix in matrices
    )
    item = received(devices, layer)

    results_RH = launch(devices, "asap_super_kernel", item, table)

    expected_RH = oracle(*rows_of(devices, item), layer)
    np.testing.assert_allclose(results_RH, expected_RH, rtol=0, atol=tolerance * np.abs(expected_RH).max())


def to_rows(matrix: NDArray[np.float32], row_type: RowType) -> NDArray[np.generic]:
    """Rounded to the row type, as bits."""
    if row_type is RowType.FLOAT32:
        return matrix
    return torch.from_numpy(matrix).bfloat16().view(torch.uint16).numpy()


def test_int8_is_the_products_own(twin: Twin) -> None:
    """W8A8 against asap_ray/models/int8_experts.py, whose products and scales are the same numbers."""
    devices = Devices(twin, World(moe_devices=1))
    tables = Int8Table(LAYERS, EXPERTS, (2 * WIDTH, HIDDEN)), Int8Table(LAYERS, EXPERTS, (HIDDEN, WIDTH))
    addresses = []
    for layer in range(LAYERS):
        quantised = []
        for table, matrices in zip(tables, experts(), strict=True):
            for x in range(EXPERTS):
                table.put(layer, x, torch.from_numpy(matrices[layer, x]))
            quantised.append([quantise(torch.from_numpy(matrix)) for matrix in matrices[layer]])
        addresses += [twin.copy(weight.numpy()) for pairs in quantised for weight, _ in pairs]
        addresses += [twin.copy(scale.numpy()) for pairs in quantised for _, scale in pairs]
    item = received(devices, 2)

    results_RH = launch(devices, "asap_super_kernel_int8", item, twin.table(addresses))

    rows_RH, counts_E = rows_of(devices, item)
    stage = Int8ExpertStage(*tables)
    expected = asyncio.run(stage.super_kernel(2, torch.from_numpy(rows_RH.copy()), torch.from_numpy(counts_E.copy())))
    np.testing.assert_allclose(results_RH, expected.numpy(), rtol=0, atol=0.02 * float(expected.abs().max()))
