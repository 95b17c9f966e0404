"""The super kernel on the twin against numpy and the product's own int8 stage."""

# Shapes: L layers, E experts of this device, R rows grouped by expert, H hidden, I intermediate, J = 2 I.

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asap_ray.models.int8_experts import Int8ExpertStage, Int8Table, quantise
from asap_ray.spec import NUM_SLOTS, RowType
from tests.ascend.devices import Devices
from tests.ascend.twin import Place, Twin
from tests.csrc.world import SLOT_ROWS, World, bits_of

LAYERS, EXPERTS, HIDDEN, WIDTH = 4, 7, 20, 12
BLOCKS = 3


def received(devices: Devices, layer: int) -> NDArray[np.uint8]:
    """An item with one message of nine tokens, one of them all zeros, as dispatch_recv leaves it."""
    tokens = devices.world.tokens(9)
    tokens.hidden_SH[4] = 0
    devices.send(tokens, layer=layer)
    _, item = devices.take(0)
    devices.run()
    return item


def received_by_few(devices: Devices) -> NDArray[np.uint8]:
    """An item of layer 1 with five solo messages to the same three experts: each has more rows than a tile."""
    for j in range(devices.layout.tp):
        tokens = devices.world.tokens(NUM_SLOTS * SLOT_ROWS, seed=j)
        tokens.expert_ids_SK[:] = [0, 2, 5]
        devices.send(tokens, j=j)
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
    workspace = twin.garbage(BLOCKS * max(num_bytes, twin.size("super_kernel_bytes", WIDTH)))
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


def float_table(twin: Twin, row_type: RowType) -> NDArray[np.uint64]:
    """The weights' addresses, by (layer, projection, expert)."""
    gate_up_LEJH, down_LEHI = (twin.copy(to_rows(matrix, row_type)) for matrix in experts())
    none = np.zeros(1, dtype=np.float32)
    return twin.table(
        matrix
        for n in range(LAYERS)
        for matrices in (gate_up_LEJH[n], down_LEHI[n], [none] * EXPERTS, [none] * EXPERTS)
        for matrix in matrices
    )


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize(("row_type", "tolerance"), [(RowType.FLOAT32, 1e-5), (RowType.BFLOAT16, 0.03)])
def test_layer_and_groups_come_from_the_item(twin: Twin, layer: int, row_type: RowType, tolerance: float) -> None:
    """One launch, the same arguments for every layer; the answer is that of the layer in the message."""
    devices = Devices(twin, World(moe_devices=1, row_type=row_type, compute_type=row_type))
    item = received(devices, layer)

    results_RH = launch(devices, "asap_super_kernel", item, float_table(twin, row_type))

    expected_RH = oracle(*rows_of(devices, item), layer)
    np.testing.assert_allclose(results_RH, expected_RH, rtol=0, atol=tolerance * np.abs(expected_RH).max())


def test_more_rows_than_a_tile(twin: Twin) -> None:
    """Three experts of 160 rows: two tiles each, over three blocks."""
    devices = Devices(twin, World(moe_devices=1, tp=5), num_blocks=2)
    item = received_by_few(devices)

    results_RH = launch(devices, "asap_super_kernel", item, float_table(twin, RowType.FLOAT32))

    rows_RH, counts_E = rows_of(devices, item)
    expected_RH = oracle(rows_RH, counts_E, layer=1)
    assert counts_E.tolist() == [160, 0, 160, 0, 0, 160, 0]
    np.testing.assert_allclose(results_RH, expected_RH, rtol=0, atol=1e-5 * np.abs(expected_RH).max())


def to_rows(matrix: NDArray[np.float32], row_type: RowType) -> NDArray[np.generic]:
    """Rounded to the row type, as bits."""
    if row_type is RowType.FLOAT32:
        return matrix
    return torch.from_numpy(matrix).bfloat16().view(torch.uint16).numpy()


def int8_experts(twin: Twin) -> tuple[Int8ExpertStage, NDArray[np.uint64]]:
    """The product's own stage, and the addresses of the same numbers."""
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
    return Int8ExpertStage(*tables), twin.table(addresses)


@pytest.mark.parametrize(("tp", "layer"), [(1, 2), (5, 1)])
def test_int8_is_the_products_own(twin: Twin, tp: int, layer: int) -> None:
    """W8A8 against asap_ray/models/int8_experts.py, whose products and scales are the same numbers; a tile and two."""
    devices = Devices(twin, World(moe_devices=1, tp=tp), num_blocks=2)
    stage, table = int8_experts(twin)
    item = received(devices, layer) if tp == 1 else received_by_few(devices)

    results_RH = launch(devices, "asap_super_kernel_int8", item, table)

    rows_RH, counts_E = (torch.from_numpy(array.copy()) for array in rows_of(devices, item))
    expected = asyncio.run(stage.super_kernel(layer, rows_RH, counts_E))
    np.testing.assert_allclose(results_RH, expected.numpy(), rtol=0, atol=0.02 * float(expected.abs().max()))
