"""What the frontend measures: requests, batches, and whether its instance serves.

Names, labels and buckets that begin with `vllm:` are vLLM's. A histogram is filled once a request or once a batch.
"""

from __future__ import annotations

from typing import Final

from asap_ray.telemetry.metric import Kind, Metric, counter, gauge

_MODEL: Final = ("model_name", "engine")
_APP: Final = ("app",)

_TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_LATENCY_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_LENGTHS: Final = tuple(float(mantissa * 10**power) for power in range(6) for mantissa in (1, 2, 5))
_BATCH_TOKENS: Final = (1.0, *(float(1 << power) for power in range(3, 17)))
_FILLS: Final = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0)


def _seconds(name: str, help: str, measured: str) -> Metric:
    """A latency of vLLM's."""
    return Metric(name, Kind.HISTOGRAM, "seconds", _MODEL, help, measured, _LATENCY_S)


TTFT: Final = Metric(
    "vllm:time_to_first_token_seconds",
    Kind.HISTOGRAM,
    "seconds",
    _MODEL,
    "From arrival to the first token.",
    "Ttft.total_s of a prompt's first TokenEvent",
    _TTFT_S,
)
E2E: Final = _seconds(
    "vllm:e2e_request_latency_seconds",
    "From arrival to the last token.",
    "now - Request.arrival_s at a token with a finish_reason",
)
QUEUE_TIME: Final = _seconds(
    "vllm:request_queue_time_seconds",
    "From arrival, tokenizing included, until a DP group is handed the prompt or its first piece.",
    "Ttft.queue_s",
)
PREFILL_TIME: Final = _seconds(
    "vllm:request_prefill_time_seconds",
    "From the hand-over to a DP group to the first token.",
    "Ttft.total_s - Ttft.queue_s",
)
INFERENCE_TIME: Final = _seconds(
    "vllm:request_inference_time_seconds",
    "From the hand-over to a DP group to the last token.",
    "now - Waiter.handed_s at a token with a finish_reason",
)
PROMPT_TOKENS: Final = counter(
    "vllm:prompt_tokens",
    "tokens",
    _MODEL,
    "Prompt tokens prefilled, those found in a prefix cache included.",
    "Batch.num_tokens and Request.cached_tokens at the first pass of a batch",
)
GENERATION_TOKENS: Final = counter(
    "vllm:generation_tokens",
    "tokens",
    _MODEL,
    "Tokens generated.",
    "tokens that a pass of a group delivers",
)
REQUEST_SUCCESS: Final = counter(
    "vllm:request_success",
    "requests",
    (*_MODEL, "finished_reason"),
    "Requests that ended: stop, length, or abort if the client left first.",
    "Token.finish_reason; stop where PrefillService.generate is closed before one, abort where it is cancelled",
)
REQUEST_PROMPT_TOKENS: Final = Metric(
    "vllm:request_prompt_tokens",
    Kind.HISTOGRAM,
    "tokens",
    _MODEL,
    "Length of prompts.",
    "Request.prompt_tokens of an accepted request",
    _LENGTHS,
)
BATCH_TOKENS: Final = Metric(
    "vllm:iteration_tokens_total",
    Kind.HISTOGRAM,
    "tokens",
    _MODEL,
    "Tokens of a batch.",
    "Batch.num_tokens of an Assignment",
    _BATCH_TOKENS,
)
RUNNING: Final = gauge(
    "vllm:num_requests_running",
    "requests",
    _MODEL,
    "Requests of the batches that groups hold.",
    "requests of DualBatchScheduler.in_flight over all groups",
)
WAITING: Final = gauge(
    "vllm:num_requests_waiting",
    "requests",
    _MODEL,
    "Requests that no group has yet.",
    "DualBatchScheduler.num_queued",
)
KV_CACHE_USAGE: Final = gauge(
    "vllm:kv_cache_usage_perc",
    "ratio",
    _MODEL,
    "Blocks of the KV pools that requests hold; 1 is all.",
    "PrefixCache.num_held over all blocks, of all groups",
)
PREFIX_QUERIES: Final = counter(
    "vllm:prefix_cache_queries",
    "tokens",
    _MODEL,
    "Prompt tokens looked up in the prefix caches.",
    "PrefixCounts.queried_tokens of all groups",
)
PREFIX_HITS: Final = counter(
    "vllm:prefix_cache_hits",
    "tokens",
    _MODEL,
    "Prompt tokens whose keys and values were there.",
    "PrefixCounts.hit_tokens of all groups",
)
CACHE_CONFIG: Final = gauge(
    "vllm:cache_config_info",
    "none",
    ("engine", "block_size", "num_gpu_blocks"),
    "Always 1: its labels are the tokens of a block and the number of blocks.",
    "the configuration of the KV pools",
)

TTFT_PART: Final = Metric(
    "asap_ttft_part_seconds",
    Kind.HISTOGRAM,
    "seconds",
    (*_APP, "part"),
    "Where a time to first token went (5.3): queue, attention, dispatch, combine, and rest.",
    "the fields of Ttft; rest is what the others leave of total_s",
    _TTFT_S,
)
LATENESS: Final = Metric(
    "asap_ttft_lateness_seconds",
    Kind.HISTOGRAM,
    "seconds",
    _APP,
    "How far past its objective a first token came; 0 in time.",
    "max(0, Ttft.total_s - ServeConfig.ttft_objective_s)",
    _TTFT_S,
)
REQUEST_ERRORS: Final = counter(
    "asap_request_errors",
    "requests",
    (*_APP, "status"),
    "Requests answered with an error, by HTTP status.",
    "the status that http_errors.error_of gives",
)
QUEUED_TOKENS: Final = gauge(
    "asap_queued_tokens",
    "tokens",
    _APP,
    "Prompt tokens that no batch has yet.",
    "DualBatchScheduler.num_queued_tokens, once a second",
)
QUEUE_DRAIN: Final = gauge(
    "asap_queue_drain_seconds",
    "seconds",
    _APP,
    "How long the queue takes at the rate of the last batches: the Retry-After of a refusal.",
    "DualBatchScheduler.drain_s",
)
BATCH_FILL: Final = Metric(
    "asap_batch_fill_ratio",
    Kind.HISTOGRAM,
    "ratio",
    _APP,
    "Tokens of a batch over the inflection point (3.3.1); below 1 the MoE stage is bound by memory.",
    "Batch.num_tokens of an Assignment / PrefillSpec.inflection_tokens",
    _FILLS,
)
SLOT_SECONDS: Final = counter(
    "asap_slot_seconds",
    "seconds",
    (*_APP, "dp_group", "occupied"),
    "Seconds in which a DP group held 0, 1 or 2 batches.",
    "time between changes of len(DualBatchScheduler.in_flight(group))",
)

READY: Final = gauge(
    "asap_ready",
    "none",
    _APP,
    "1 while GET /ready answers 200, else 0.",
    "whether PrefillService.missing() is empty, once a second",
)
DEVICE_UP: Final = gauge(
    "asap_device_up",
    "none",
    (*_APP, "device"),
    "1 while a group or MoE device says that it serves, else 0.",
    "Vitals.saw: the states that PrefillInstance.watch asks for once a second",
)
DEVICE_LOSSES: Final = counter(
    "asap_device_losses",
    "devices",
    (*_APP, "device"),
    "Groups and MoE devices found lost.",
    "Vitals.lost: a device that served and does not any more",
)
DEVICE_SLOWNESS: Final = gauge(
    "asap_device_slowness",
    "ratio",
    (*_APP, "device"),
    "How many times as long as the others of its kind a device computes for layers of one size; 1 if idle or alone.",
    "Pace: seconds of the last 20 layers of batches or more, beside the others' of that size, each 10 s (Stragglers)",
)
GROUP_FAILURES: Final = counter(
    "asap_group_failures",
    "batches",
    (*_APP, "dp_group"),
    "Batches that a DP group failed.",
    "PrefillService._run",
)
STARTED_AT: Final = gauge(
    "asap_instance_started_seconds",
    "seconds",
    _APP,
    "Unix time at which the frontend found its instance serving; it changes with every start but the first.",
    "Vitals.started, time.time()",
)
START_TIME: Final = gauge(
    "asap_instance_start_seconds",
    "seconds",
    (*_APP, "how"),
    "How long the last start took until its instance served: attached to devices that ran, or created them.",
    "Vitals.started at the end of PrefillInstance.start",
)
