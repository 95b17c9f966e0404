"""The keys of a Hugging Face JSON object, each checked as it is taken: what is not understood is refused by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from asap_ray.errors import ConfigError
from asap_ray.models.rope import Rope, Yarn

HARMLESS: Final = frozenset(
    {
        "attention_dropout",
        "aux_loss_alpha",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "ep_size",
        "initializer_range",
        "max_window_layers",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "seq_aux",
        "sliding_window",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "auto_map",
    }
)
"""Keys that do not change a prompt's logits: token ids, training, storage.

`sliding_window` is a size only: families whose layers always use one take the key themselves.
"""

_PLAIN: Final = frozenset({"rope_type", "type", "rope_theta"})
_YARN_NEEDS: Final = frozenset({"factor", "original_max_position_embeddings"})
_YARN_MAY_BE_0: Final = frozenset({"mscale", "mscale_all_dim", "attention_factor"})
"""As good as missing."""
_YARN: Final = frozenset(
    {
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
    }
)


MAX_LAYERS: Final = 4096
"""No published model has a tenth of it."""


class Fields:
    """One JSON object; every error names the file, the key and its value."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._taken: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> Fields:
        """The object a file holds.

        Raises:
            ConfigError: there is no such file, or no JSON object in it.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist; a Hugging Face checkpoint directory has one") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise ConfigError(f"{path} must hold a JSON object, not {type(content).__name__}")
        return cls(content, str(path))

    def take(self, key: str, default: Any = None) -> Any:
        """A value unchecked; null is as good as missing."""
        self._taken.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def wrong(self, key: str, must: str) -> ConfigError:
        """The error that says what a key must be."""
        return ConfigError(f"{self._where}: {key}={self._values.get(key)!r} must be {must}")

    def only(self, key: str, *allowed: Any) -> None:
        """A key that may be missing, or else have one of these values."""
        value = self.take(key)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            raise self.wrong(key, " or ".join(map(repr, allowed or [None])) + ": nothing else is supported")

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 up; required where there is no default."""
        value = self.take(key, default)
        if value is None:
            raise ConfigError(f"{self._where}: required key {key!r} is missing")
        if type(value) is not int or (value < 1 and value != default):
            raise self.wrong(key, "a whole number, at least 1")
        return value

    def num_layers(self) -> int:
        """Decoder layers; what is read for each of them must fit in memory before a weight does."""
        num_layers = self.size("num_hidden_layers")
        if num_layers > MAX_LAYERS:
            raise self.wrong("num_hidden_layers", f"at most {MAX_LAYERS}")
        return num_layers

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 up; required where there is no default."""
        return 0 if self.take(key) == 0 else self.size(key, default)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.take(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; required where there is no default."""
        value = self.take(key, default)
        if value is None:
            raise ConfigError(f"{self._where}: required key {key!r} is missing")
        return self._positive(key, value)

    def _positive(self, key: str, value: object) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
            raise ConfigError(f"{self._where}: {key}={value!r} must be a positive number")
        return float(value)

    def one_of(self, old: str, new: str) -> str:
        """Which of two names of one value is present; both may be, when they agree."""
        before, after = self.take(old), self.take(new)
        if before is not None and after is not None and before != after:
            raise ConfigError(f"{self._where}: {old}={before!r} contradicts {new}={after!r}")
        return new if before is None else old

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id, a list of them, or none."""
        value = self.take(key, [])
        ids = value if isinstance(value, list) else [value]
        if any(type(token_id) is not int for token_id in ids):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(ids)

    def rope(self, head_dim: int, partial_factor: float | None = None) -> Rope:
        """Rotary embeddings, plain or YaRN, from either generation of keys.

        Args:
            head_dim: of the vectors they turn.
            partial_factor: share of `head_dim` that is turned where the file does not say; None: all, whatever it says.
        """
        plain = _PLAIN if partial_factor is None else _PLAIN | {"partial_rotary_factor"}
        for key in ("rope_scaling", "rope_parameters"):
            value = self.take(key, {})
            kind = value.get("rope_type", value.get("type", "default")) if isinstance(value, dict) else None
            allowed = {"default": plain, "yarn": plain | _YARN}.get(str(kind))
            if allowed is None or set(value) - allowed or (kind == "yarn" and not _given(value) >= _YARN_NEEDS):
                raise self.wrong(key, "of rope_type 'default', or 'yarn' with its own keys; no other is supported")
        key = self.one_of("rope_scaling", "rope_parameters")
        values = self.take(key, {})
        theta = self._agreed("rope_theta", key, values)
        if theta is None:
            raise ConfigError(f"{self._where}: rope_theta=None must be a positive number")
        turned = head_dim
        if partial_factor is not None:
            turned = int(head_dim * (self._agreed("partial_rotary_factor", key, values) or partial_factor))
        if turned % 2 or not 0 < turned <= head_dim:
            raise ConfigError(f"{self._where}: {turned} of head_dim={head_dim} dimensions cannot be turned in pairs")
        return Rope(dim=turned, theta=theta, yarn=self._yarn(key, values))

    def _agreed(self, key: str, nested_in: str, nested: dict[str, Any]) -> float | None:
        """A number that stands beside the rotary settings, among them, or in both places alike."""
        outside, inside = self.take(key), nested.get(key)
        if outside is not None and inside is not None and outside != inside:
            raise ConfigError(f"{self._where}: {key}={outside!r} contradicts {nested_in}={nested!r}")
        value = outside if inside is None else inside
        return None if value is None else self._positive(key, value)

    def _yarn(self, key: str, values: dict[str, Any]) -> Yarn | None:
        if not set(values) & _YARN:
            return None
        wanted = {name for name in _given(values) & _YARN if name not in _YARN_MAY_BE_0 or values[name] != 0}
        given = {name: self._positive(f"{key}.{name}", values[name]) for name in wanted}
        original = given.pop("original_max_position_embeddings")
        return Yarn(original_positions=original, **given)

    def fp8_block(self) -> tuple[int, int] | None:
        """Rows and columns that share a scale where matrices are stored in FP8; None where they are not."""
        value = self.take("quantization_config")
        if value is None:
            return None
        known = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0"}
        block: Any = value.get("weight_block_size") if isinstance(value, dict) else None
        is_pair = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
        if (
            not is_pair
            or value.get("quant_method") != "fp8"
            or any(value.get(k, v) not in (v, None) for k, v in known.items())
        ):
            raise self.wrong(
                "quantization_config", "FP8 (e4m3) in blocks, with dynamic activations and weight_block_size"
            )
        return block[0], block[1]

    def refuse_the_rest(self, harmless: Iterable[str] = ()) -> None:
        """A key nobody took is fine if it is known to be harmless or says nothing; else it is refused."""
        known = self._taken | HARMLESS | set(harmless)
        for key, value in self._values.items():
            if key not in known and not key.startswith("_") and not _says_nothing(value):
                raise ConfigError(f"{self._where}: {key}={value!r} is not supported and may change the model's answers")


def _given(values: dict[str, Any]) -> set[str]:
    """The keys whose values are not null."""
    return {key for key, value in values.items() if value is not None}


def _says_nothing(value: object) -> bool:
    """Null, false or empty; the number 0 may say a lot."""
    return value is None or value is False or value in ([], {})
