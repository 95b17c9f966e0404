"""The decoder every family shares: the attention stage of one rank, all of a model but its routed experts."""

# Shapes: S tokens of the batch padded to a multiple of T, R = S / T rows of this rank, P of them no padding,
#         H hidden, B requests that get a token.

from __future__ import annotations

from collections.abc import Set
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from asap_ray.batch import Batch, Request, Token
from asap_ray.kvcache.kinds import CacheSpec
from asap_ray.kvcache.storage import PagedRows, Storage
from asap_ray.models.config import ModelConfig
from asap_ray.models.dense import DenseMLP
from asap_ray.models.passes import Answer, Cache, Pass, Sequence
from asap_ray.models.router import Router
from asap_ray.models.sampler import Sampler
from asap_ray.models.vocabulary import Vocabulary
from asap_ray.models.weights import Shard
from asap_ray.protocol import NOBODY, Collective, Finished, Routed
from asap_ray.spec import RowType

FLOAT_BYTES: Final = 4

HIDDEN_COPIES: Final = 6
"""Of a batch's hidden states: residual stream, normalised, gathered, partial sums, experts' results, and one more."""


class DecoderLayer:
    """One layer's share on rank j, up to its routed experts."""

    def __init__(self, shard: Shard, config: ModelConfig, layer_idx: int) -> None:
        name, hidden = f"model.layers.{layer_idx}", config.hidden
        is_moe = layer_idx in config.moe_layers
        self.attention = config.attention.layer(shard, config, layer_idx)
        self.input_norm_H = shard.vector(f"{name}.input_layernorm.weight", hidden)
        self.output_norm_H = shard.vector(f"{name}.post_attention_layernorm.weight", hidden)
        self.router = Router(shard, config, layer_idx) if is_moe else None
        mlp, width = (
            (f"{name}.{config.names.block}.shared_experts", config.shared_intermediate)
            if is_moe
            else (f"{name}.mlp", config.dense_intermediate)
        )
        self.dense = DenseMLP(shard, mlp, hidden, width) if width else None  # every token goes through it


class Decoder:
    """`AttentionStage` for rank j of T: Megatron tensor and sequence parallelism.

    The residual stream stays float32 and scattered, R rows a rank. It is gathered before each
    matrix that is split by heads or columns, and the partial sums are reduce-scattered after it.
    """

    def __init__(self, shard: Shard, config: ModelConfig, collective: Collective) -> None:
        self._config = config
        self._collective = collective
        self._dtype = shard.dtype
        self._kernels = shard.kernels
        self.num_layers = len(config.moe_layers)
        self._layers = [DecoderLayer(shard, config, layer_idx) for layer_idx in range(config.num_layers)]
        self._vocabulary = Vocabulary(shard, config, collective)
        self._norm_H = shard.vector("model.norm.weight", config.hidden)
        self._storage: Storage | None = None
        self._kept: dict[str, Cache | PagedRows] = {}  # of prompts with chunks to come, by request id

    @property
    def num_kept(self) -> int:
        """Prompts with chunks to come."""
        return len(self._kept)

    def cache_spec(self, block_size: int) -> CacheSpec:
        """What this rank keeps of a token, in pages of `block_size` of them."""
        return CacheSpec(
            num_layers=len(self._layers),
            block_size=block_size,
            kinds=tuple(self._layers[0].attention.kept),
            element=RowType(str(self._dtype).removeprefix("torch.")),
        )

    def workspace_bytes(self, num_tokens: int, num_threads: int) -> int:
        """What a pass over so many tokens needs beside weights and pages: an estimate, on the side of too much."""
        attention = max(layer.attention.workspace(num_tokens, num_threads) for layer in self._layers)
        dense = max(layer.dense.workspace(num_tokens) if layer.dense else 0 for layer in self._layers)
        return FLOAT_BYTES * (max(attention, dense) + HIDDEN_COPIES * num_tokens * self._config.hidden)

    def keep_in(self, storage: Storage) -> None:
        """Where requests that come with a table of blocks keep their keys and values from now on."""
        self._storage = storage

    async def start(self, batch: Batch) -> Pass:
        """See `AttentionStage`; the chunk before each chunk has started."""
        with torch.inference_mode():
            return self._start(batch)

    def _start(self, batch: Batch) -> Pass:
        for request_id in batch.forget:
            self._kept.pop(request_id, None)
        answers, start = [], 0
        for request in batch.requests:
            stop = start + request.num_tokens
            sequence = Sequence(slice(start, stop), request.past_tokens, self._cache(request))
            answers.append(Answer(request, Sampler(request.sampling), sequence))
            start = stop
        token_ids = b"".join(request.token_ids for request in batch.requests)  # as every CPU we run on: little-endian
        return self._pass(answers, torch.from_numpy(np.frombuffer(token_ids, np.int32).copy()))

    def _cache(self, request: Request) -> Cache | PagedRows | None:
        """Where a request's keys and values stay; the chunks of one prompt share it. The last chunk takes it along."""
        cache = self._room(request) if request.is_first else self._kept.pop(request.request_id)
        if request.future_tokens and cache:
            self._kept[request.request_id] = cache
        return cache

    def _room(self, request: Request) -> Cache | PagedRows | None:
        """For a prompt and its answer: its pages, or memory of its own, or none where nothing comes after it."""
        if request.table:
            assert self._storage, f"prompt {request.request_id!r} has a table of blocks; there are no pages"
            return PagedRows(self._storage, request.table, request.cached_tokens)
        if request.kv_tokens:
            kinds, where = self._layers[0].attention.kept, (self._dtype, self._kernels.device)
            return Cache(kinds, len(self._layers), request.kv_tokens, *where)
        return None

    def _pass(self, answers: list[Answer], token_ids_S: torch.Tensor) -> Pass:
        num_tokens, size = len(token_ids_S), self._collective.size
        rank_rows = -(-num_tokens // size)
        padding = rank_rows * size - num_tokens
        token_ids_S = functional.pad(token_ids_S, (0, padding))
        positions = [torch.arange(a.sequence.num_cached, a.sequence.num_cached + a.sequence.num_rows) for a in answers]
        positions_S = torch.cat((*positions, torch.zeros(padding, dtype=torch.int64)))
        cos_SF, sin_SF = self._config.attention.rope.angles_at(positions_S)
        return Pass(
            answers=answers,
            angles=(cos_SF.to(self._kernels.device), sin_SF.to(self._kernels.device)),
            residual_RH=self._vocabulary.embed(token_ids_S),
            num_rows=min(max(num_tokens - self._collective.rank * rank_rows, 0), rank_rows),
        )

    async def attend(self, state: Pass, layer: int, expert_out: torch.Tensor | None) -> Routed:
        """See `AttentionStage`; `hidden_SH` has this rank's rows without padding, in the compute type."""
        with torch.inference_mode():
            self._add_experts(state, expert_out)
            return self._attend(state, self._config.moe_layers[layer])

    def _attend(self, state: Pass, moe_layer_idx: int) -> Routed:
        self._dense_layers(state, moe_layer_idx)
        layer = self._layers[moe_layer_idx]
        self._attention(state, layer)
        state.layer_idx += 1
        hidden_RH = self._kernels.rms_norm(state.residual_RH, layer.output_norm_H, self._config.rms_norm_eps)
        hidden_PH = hidden_RH[: state.num_rows]
        assert layer.router is not None
        expert_ids_PK, weights_PK = layer.router(hidden_PH)
        if layer.dense is not None:
            self._mlp(state, layer.dense, hidden_RH.to(self._dtype))
        return Routed(hidden_PH.to(self._dtype), expert_ids_PK, weights_PK)

    async def finish(self, state: Pass, expert_out: torch.Tensor, unwanted: Set[str] = NOBODY) -> Finished:
        """See `AttentionStage`; rank 0 samples and knows what is unwanted, every rank says the same."""
        with torch.inference_mode():
            self._add_experts(state, expert_out)
            return self._finish(state, unwanted)

    def _finish(self, state: Pass, unwanted: Set[str]) -> Finished:
        self._dense_layers(state, self._config.num_layers)
        if not state.sampling:
            return Finished((), None)
        logits_BV = self.logits(state).cpu()
        message = None
        if self._collective.rank == 0:
            choices = [
                (answer.sampler.choose(logits_V), answer.request.request_id not in unwanted)
                for answer, logits_V in zip(state.sampling, logits_BV, strict=True)
            ]
            message = torch.tensor(choices, dtype=torch.int32).numpy().tobytes()
        choices_B2 = torch.frombuffer(bytearray(self._collective.broadcast(message)), dtype=torch.int32).view(-1, 2)
        tokens = [
            answer.extend(token_id, logits_V, is_wanted=bool(is_wanted))
            for answer, (token_id, is_wanted), logits_V in zip(
                state.sampling, choices_B2.tolist(), logits_BV, strict=True
            )
        ]
        return Finished(tuple(tokens), self._next(state, tokens))

    def logits(self, state: Pass) -> torch.Tensor:
        """Float32 logits of the last row of each request that gets a token, [B, V], on every rank."""
        last_B = torch.tensor([answer.sequence.rows.stop - 1 for answer in state.sampling])
        num_rows, device = len(state.residual_RH), self._kernels.device
        own_B1 = (last_B // num_rows == self._collective.rank)[:, None].to(device)
        row_B = (last_B % num_rows).to(device)
        last_BH = state.residual_RH.index_select(0, row_B) * own_B1  # one rank has each row, the others add zero
        gathered_TBH = self._collective.all_gather(last_BH).unflatten(0, (-1, len(last_B)))
        normed_BH = self._kernels.rms_norm(gathered_TBH.sum(0), self._norm_H, self._config.rms_norm_eps)
        return self._vocabulary.logits(normed_BH)

    def _next(self, state: Pass, tokens: list[Token]) -> Pass | None:
        """The decode step of the requests that want more."""
        going = [(a, t) for a, t in zip(state.sampling, tokens, strict=True) if t.finish_reason is None]
        if not going:
            return None
        for row, (answer, _) in enumerate(going):
            sequence = answer.sequence
            sequence.num_cached, sequence.rows = sequence.num_cached + sequence.num_rows, slice(row, row + 1)
        return self._pass([a for a, _ in going], torch.tensor([t.token_id for _, t in going], dtype=torch.int32))

    def _add_experts(self, state: Pass, expert_out_PH: torch.Tensor | None) -> None:
        if expert_out_PH is not None:
            state.residual_RH[: state.num_rows] += expert_out_PH

    def _dense_layers(self, state: Pass, stop: int) -> None:
        """Layers without routed experts, whole, from where the pass is up to `stop`."""
        for layer in self._layers[state.layer_idx : stop]:
            self._attention(state, layer)
            assert layer.dense is not None
            self._mlp(state, layer.dense, self._normalised(state, layer.output_norm_H))
        state.layer_idx = stop

    def _attention(self, state: Pass, layer: DecoderLayer) -> None:
        rows_RA = layer.attention.compress(self._normalised(state, layer.input_norm_H))
        partial_SH = layer.attention(self._collective.all_gather(rows_RA), state.angles, state.sequences)
        state.residual_RH += self._collective.reduce_scatter(partial_SH)

    def _mlp(self, state: Pass, mlp: DenseMLP, hidden_RH: torch.Tensor) -> None:
        state.residual_RH += self._collective.reduce_scatter(mlp(self._collective.all_gather(hidden_RH)))

    def _normalised(self, state: Pass, norm_H: torch.Tensor) -> torch.Tensor:
        """This rank's rows in the compute type."""
        return self._kernels.rms_norm(state.residual_RH, norm_H, self._config.rms_norm_eps, self._dtype)
