"""What attention ranks and MoE devices measure.

All are totals that a loop keeps as plain numbers and its actor reports once a second. An observation of a histogram
would cost 2 to 20 us (measured, Ray 2.60), and a layer on a MoE device may last 300; means are ratios of two totals.
"""

from __future__ import annotations

from typing import Final

from asap_ray.telemetry.metric import counter, gauge

_RANK: Final = ("app", "dp_group", "tp_rank")
_DEVICE: Final = ("app", "moe_device")

ATTENTION_SECONDS: Final = counter(
    "asap_attention_seconds",
    "seconds",
    (*_RANK, "phase"),
    "Where an attention rank's time went: compute, dispatch (back-pressure included), combine. The rest is idle.",
    "Duty.compute_s; RankTotals.dispatch_s and combine_s",
)
BACKPRESSURE: Final = counter(
    "asap_backpressure_seconds",
    "seconds",
    (*_RANK, "moe_device"),
    "The part of dispatch in which a rank waited for room in a MoE device.",
    "RankTotals.backpressure_s_M: the wait for a clear bit in async_dispatch_send",
)
ATTENTION_ITEMS: Final = counter(
    "asap_attention_items",
    "layers",
    _RANK,
    "Layers of batches computed.",
    "Duty.num_items",
)
ATTENTION_ROWS: Final = counter(
    "asap_attention_rows",
    "rows",
    _RANK,
    "Tokens computed, once a layer.",
    "Duty.num_rows",
)

MOE_SECONDS: Final = counter(
    "asap_moe_seconds",
    "seconds",
    (*_DEVICE, "stream", "state"),
    "Time of the streams receive, compute, send (3.4.1): work, starved of input, blocked by output.",
    "DeviceTotals.receive, compute and send: the laps of engine/experts.py",
)
MOE_CALLS: Final = counter(
    "asap_moe_calls",
    "calls",
    _DEVICE,
    "Calls of the super kernel: one layer of one batch each.",
    "Duty.num_items",
)
MOE_ROWS: Final = counter(
    "asap_moe_rows",
    "rows",
    _DEVICE,
    "(Token, expert) pairs computed.",
    "Duty.num_rows",
)
MOE_TOKENS: Final = counter(
    "asap_moe_tokens",
    "tokens",
    _DEVICE,
    "Tokens received, once a layer however many of the device's experts they chose.",
    "DeviceTotals.num_tokens: the rows that the headers of an Item announce",
)
EXPERT_ROWS: Final = counter(
    "asap_expert_rows",
    "rows",
    (*_DEVICE, "expert"),
    "Rows of each expert, over all layers.",
    "DeviceTotals.rows_E: WorkItem.num_rows_E, summed over calls",
)
EXPERT_CALLS: Final = counter(
    "asap_expert_calls",
    "calls",
    _DEVICE,
    "Experts that had rows, summed over calls.",
    "DeviceTotals.num_expert_calls: positive entries of WorkItem.num_rows_E",
)
LAYER_ENTROPY: Final = gauge(
    "asap_layer_order_entropy_bits",
    "bits",
    _DEVICE,
    "Entropy of the step from one call's layer to the next one's: 0 where layers come in order, as with barriers.",
    "entropy_bits of what DeviceTotals.steps_L has grown by in the last second",
)
MESSAGES_DROPPED: Final = counter(
    "asap_messages_dropped",
    "messages",
    _DEVICE,
    "Messages whose header contradicts the layout.",
    "DeviceTotals.num_dropped: CorruptMessage in HostMoEComm._receive",
)
