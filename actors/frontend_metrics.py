"""What a frontend counts of requests, batches and devices; `telemetry/frontend.py` says where each number is from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from asap_ray.actors.exporters import Exporter, PrometheusExporter, Totals
from asap_ray.actors.vitals import Vitals
from asap_ray.actors.waiter import TokenEvent, Ttft, Waiter
from asap_ray.batch import Batch, Request, Token
from asap_ray.config import ServeConfig
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.spec import NUM_SLOTS
from asap_ray.telemetry import frontend

_REASONS: Final = ("stop", "length", "abort")
_STATUSES: Final = (400, 429, 500, 503)
_PARTS: Final = ("queue_s", "attention_s", "dispatch_s", "combine_s")


class FrontendMetrics:
    """One frontend's. All methods belong to the loop of its service."""

    def __init__(self, config: ServeConfig, model_name: str, asap: Exporter | None = None) -> None:
        """`asap` takes the metrics named `asap_*`; without one they are on `GET /metrics` beside `vllm:*`."""
        self._registry = CollectorRegistry()
        self._vllm = PrometheusExporter(
            self._registry, model_name=model_name, engine=config.name.partition(":")[2] or "0"
        )
        self._asap = asap or PrometheusExporter(self._registry, app=config.name)
        self._totals, self._vllm_totals = Totals(self._asap), Totals(self._vllm)
        self._inflection_tokens = config.prefill.inflection_tokens
        self._objective_s = config.ttft_objective_s
        self._slots = _SlotSeconds()
        self._slowness: dict[str, float] = {}  # as last told: Ray forgets a gauge that is not set again
        self._show_zeros(config.parallel.dp_groups)

    def exposition(self) -> bytes:
        """Prometheus' text format, whatever the scraper accepts: in OpenMetrics a colon would become `_`."""
        return generate_latest(self._registry)

    def accepted(self, request: Request) -> None:
        """A prompt was queued."""
        self._vllm.observe(frontend.REQUEST_PROMPT_TOKENS, request.prompt_tokens)

    def dispatched(self, batch: Batch) -> None:
        """A batch was given to a group."""
        self._vllm.observe(frontend.BATCH_TOKENS, batch.num_tokens)
        self._asap.observe(frontend.BATCH_FILL, batch.num_tokens / self._inflection_tokens)

    def passed(self, batch: Batch, tokens: Sequence[Token], is_first: bool) -> None:
        """A group made a pass over a batch: prompts the first time, one token each from then on."""
        if is_first:
            found = sum(piece.cached_tokens for piece in batch.requests if piece.is_first)
            self._vllm.count(frontend.PROMPT_TOKENS, batch.num_tokens + found)
        self._vllm.count(frontend.GENERATION_TOKENS, len(tokens))

    def answered(self, client: Waiter, event: TokenEvent) -> None:
        """A client has a token."""
        if event.ttft:
            self._first_token(event.ttft)
        if event.token.finish_reason:
            reason = event.token.finish_reason
            self.ended(client, "stop" if reason == "abort" else reason)  # a client that is here had its stop string

    def ended(self, client: Waiter, reason: str) -> None:
        """A client has all it wanted, or left (`abort`)."""
        self._vllm.count(frontend.REQUEST_SUCCESS, 1, finished_reason=reason)
        if client.handed_s is not None:
            self._vllm.observe(frontend.E2E, client.age_s)
            self._vllm.observe(frontend.INFERENCE_TIME, client.age_s - client.queue_s)

    def refused(self, status: int) -> None:
        """A request was answered with an error."""
        self._asap.count(frontend.REQUEST_ERRORS, 1, status=str(status))

    def group_failed(self, group: int) -> None:
        """A group did not finish a batch."""
        self._asap.count(frontend.GROUP_FAILURES, 1, dp_group=str(group))

    def slots_changed(self, scheduler: DualBatchScheduler, now: float) -> None:
        """Batches were given to groups, or ended."""
        self._slots.hold([len(batches) for batches in scheduler.held], now)

    def report(self, scheduler: DualBatchScheduler, is_ready: bool, now: float) -> None:
        """Once a second, and before a scrape: what is read, not counted."""
        self.slots_changed(scheduler, now)
        running = {r.request_id for batches in scheduler.held for batch in batches for r in batch.requests}
        self.load(len(running), scheduler.num_queued)
        self._asap.set(frontend.QUEUED_TOKENS, scheduler.num_queued_tokens)
        self._asap.set(frontend.QUEUE_DRAIN, scheduler.drain_s)
        self._asap.set(frontend.READY, is_ready)
        self._slots.report(self._totals)
        if scheduler.caches:
            self._report_caches(scheduler.caches)

    def load(self, num_running: int, num_waiting: int) -> None:
        """Requests that are here."""
        self._vllm.set(frontend.RUNNING, num_running)
        self._vllm.set(frontend.WAITING, num_waiting)

    def held(self, num_held: int, num_blocks: int) -> None:
        """Blocks that requests hold, of all there are."""
        self._vllm.set(frontend.KV_CACHE_USAGE, num_held / num_blocks)

    def slowness(self, device: str, times: float) -> None:
        """A MoE device takes so many times as long as the others."""
        self._slowness[device] = times

    def report_devices(self, vitals: Vitals) -> None:
        """Once a second: who serves, who was lost, and when the instance began."""
        for device, is_up in vitals.up.items():
            self._asap.set(frontend.DEVICE_UP, is_up, device=device)
            self._totals.report(frontend.DEVICE_LOSSES, vitals.losses[device], device=device)
        for device, times in self._slowness.items():
            self._asap.set(frontend.DEVICE_SLOWNESS, times, device=device)
        if start := vitals.start:
            self._asap.set(frontend.STARTED_AT, start.at_s)
            self._asap.set(frontend.START_TIME, start.seconds, how=start.how)

    def _report_caches(self, caches: Sequence[PrefixCache]) -> None:
        num_blocks, num_held = sum(cache.pool.num_blocks for cache in caches), sum(cache.num_held for cache in caches)
        self.held(num_held, num_blocks)
        self._vllm_totals.report(frontend.PREFIX_QUERIES, sum(cache.counts.queried_tokens for cache in caches))
        self._vllm_totals.report(frontend.PREFIX_HITS, sum(cache.counts.hit_tokens for cache in caches))
        block_size = str(caches[0].pool.block_size)
        self._vllm.set(frontend.CACHE_CONFIG, 1, block_size=block_size, num_gpu_blocks=str(num_blocks))

    def _first_token(self, ttft: Ttft) -> None:
        self._vllm.observe(frontend.TTFT, ttft.total_s)
        self._vllm.observe(frontend.QUEUE_TIME, ttft.queue_s)
        self._vllm.observe(frontend.PREFILL_TIME, ttft.total_s - ttft.queue_s)
        self._asap.observe(frontend.LATENESS, max(0.0, ttft.total_s - self._objective_s))
        parts = {name.removesuffix("_s"): getattr(ttft, name) for name in _PARTS}
        for part, seconds in (parts | {"rest": ttft.total_s - sum(parts.values())}).items():
            self._asap.observe(frontend.TTFT_PART, max(0.0, seconds), part=part)

    def _show_zeros(self, num_groups: int) -> None:
        for metric in (frontend.PROMPT_TOKENS, frontend.GENERATION_TOKENS):
            self._vllm.count(metric, 0)
        for reason in _REASONS:
            self._vllm.count(frontend.REQUEST_SUCCESS, 0, finished_reason=reason)
        for status in _STATUSES:
            self._asap.count(frontend.REQUEST_ERRORS, 0, status=str(status))
        for group in range(num_groups):
            self._asap.count(frontend.GROUP_FAILURES, 0, dp_group=str(group))


class _SlotSeconds:
    """Seconds in which each DP group held 0, 1 or 2 batches."""

    def __init__(self) -> None:
        self._seconds: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._held: Sequence[int] = ()  # batches, by group
        self._since_s = 0.0

    def hold(self, held: Sequence[int], now: float) -> None:
        """So many from now on."""
        for group, num_batches in enumerate(self._held):
            self._seconds[group, num_batches] += now - self._since_s
        self._held, self._since_s = held, now

    def report(self, totals: Totals) -> None:
        """Every number of every group, that nobody waits for the first sample of one."""
        for group in range(len(self._held)):
            for held in range(NUM_SLOTS + 1):
                seconds = self._seconds[group, held]
                totals.report(frontend.SLOT_SECONDS, seconds, dp_group=str(group), occupied=str(held))
