"""What clients may know of the model that is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asap_ray.actors.tokenizer import Tokenizer, load_tokenizer
from asap_ray.config import ServeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What clients may know of the model, and ask of it."""

    name: str
    vocab_size: int
    max_model_len: int  # positions: prompt and generated tokens together
    fingerprint: str  # of its configuration and weights
    end_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None  # None: token-id prompts only, and no text in answers


def served_model(config: ServeConfig) -> ServedModel:
    """What clients may know of a configuration's model.

    Raises:
        ConfigError: see `load_model` and `load_tokenizer`.
    """
    from asap_ray.models.model import load_model  # noqa: PLC0415 - takes torch along, which a replica does without

    loaded = load_model(config.model)
    model = loaded.config
    return ServedModel(
        name=config.served_model_name or Path(config.model).name,
        vocab_size=model.vocab_size,
        max_model_len=model.max_position_embeddings,
        fingerprint=loaded.fingerprint,
        end_token_ids=model.eos_token_ids,
        tokenizer=load_tokenizer(Path(config.model)),
    )
