"""Tensors of a checkpoint directory, read by slice: a device touches only the bytes that are its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from asap_ray.errors import ConfigError
from asap_ray.models.kernels import Kernels

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
SAMPLE_BYTES: Final = 65536
"""How much of each end of a file the fingerprint reads; a header alone cannot tell two seeds of one model apart."""

STORED_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
FP8: Final = torch.float8_e4m3fn
SCALE: Final = "_scale_inv"
"""Ends the name of the scales of a matrix in FP8."""
ALL: Final = slice(None)

Shape = tuple[int, ...]


class Checkpoint:
    """The safetensors of one directory, sharded or not.

    Files are mapped when first needed and stay mapped until `close` and the last view of them is gone.
    """

    def __init__(self, directory: Path, fp8_block: tuple[int, int] | None = None) -> None:
        self._directory = directory
        self._fp8_block = fp8_block  # rows and columns that share a scale
        self._open: dict[str, Any] = {}
        self._file_of = self._index() if (directory / INDEX_FILE).exists() else self._single()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self._file_of.keys()

    def close(self) -> None:
        """Let go of every file; one that is needed again is mapped again."""
        self._open.clear()

    def view(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor as the file holds it: mapped, so bytes are read where they are touched. Copy what you keep.

        Args:
            name: as in the checkpoint.
            shape: what config.json makes of it.

        Raises:
            ConfigError: the tensor is missing, of another shape, or of a type that needs unpacking.
        """
        return self._view(name, shape, STORED_DTYPES)

    def part(self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL) -> torch.Tensor:
        """A part of a matrix or vector: mapped as in `view`, or float32 where the file holds FP8 and scales of blocks.

        Raises:
            ConfigError: as `view`; or a scale is missing, or there are not as many as `fp8_block` makes.
        """
        stored = STORED_DTYPES if self._fp8_block is None else (*STORED_DTYPES, FP8)
        mapped = self._view(name, shape, stored)
        mapped = mapped[rows, columns] if mapped.ndim == 2 else mapped[rows]
        if mapped.dtype is not FP8 or self._fp8_block is None:
            return mapped
        num_blocks = tuple(-(-num // size) for num, size in zip(shape, self._fp8_block, strict=True))
        scale = self._view(f"{name}{SCALE}", num_blocks, STORED_DTYPES).float()
        for dim, (part, num, size) in enumerate(zip((rows, columns), shape, self._fp8_block, strict=True)):
            scale = scale.index_select(dim, torch.arange(*part.indices(num)) // size)
        return mapped.float().mul_(scale)

    def _view(self, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> torch.Tensor:
        if name not in self._file_of:
            raise ConfigError(f"{self._directory} has no tensor {name!r}")
        where = f"{self._directory / self._file_of[name]}: tensor {name!r}"
        try:
            mapped: torch.Tensor = self._file(self._file_of[name]).get_tensor(name)
        except SafetensorError:
            raise ConfigError(f"{where} is promised by {INDEX_FILE} but not there") from None
        if mapped.shape != shape:
            raise ConfigError(f"{where} has shape {tuple(mapped.shape)}, config.json says {shape}")
        if mapped.dtype not in dtypes:
            raise ConfigError(f"{where} is stored as {mapped.dtype}, which config.json does not explain")
        return mapped

    def fingerprint(self) -> str:
        """A hash of file names, sizes, headers and a little of the content: cheap, and another after any training.

        Raises:
            ConfigError: a file is missing or cut short.
        """
        digest = hashlib.sha256()
        for name in sorted(set(self._file_of.values())):
            self._file(name)
            with (self._directory / name).open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                digest.update(f"{name} {header_bytes} ".encode() + file.read(header_bytes + SAMPLE_BYTES))
                num_bytes = file.seek(0, 2)
                file.seek(max(0, num_bytes - SAMPLE_BYTES))
                digest.update(f"{num_bytes} ".encode() + file.read())
        return digest.hexdigest()

    def _file(self, file: str) -> Any:
        if file not in self._open:
            path = self._directory / file
            try:
                self._open[file] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise ConfigError(f"{path} is missing") from None
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{path} is not a whole safetensors file: {error}") from None
        return self._open[file]

    def _single(self) -> dict[str, str]:
        if not (self._directory / SINGLE_FILE).exists():
            raise ConfigError(f"{self._directory} has neither {SINGLE_FILE} nor {INDEX_FILE}")
        return dict.fromkeys(self._file(SINGLE_FILE).keys(), SINGLE_FILE)

    def _index(self) -> dict[str, str]:
        path = self._directory / INDEX_FILE
        try:
            file_of = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path} is not a safetensors index: {error!r}") from None
        if not isinstance(file_of, dict):
            raise ConfigError(f"{path}: weight_map must be an object")
        for name, file in file_of.items():
            is_plain = isinstance(file, str) and file == Path(file).name and file.isprintable()
            if not is_plain or not file.endswith(".safetensors"):
                raise ConfigError(f"{path}: {name!r} lies in {file!r}, not a safetensors file of this directory")
        return file_of


@dataclass(frozen=True, slots=True)
class Shard:
    """What rank j of T reads of a checkpoint: its own part of every matrix, stored [in, out] (docs/log.md: faster).

    It lies where `kernels` compute.
    """

    checkpoint: Checkpoint
    rank: int
    size: int
    dtype: torch.dtype
    kernels: Kernels

    def part(self, total: int) -> range:
        """This rank's indices of `total`: contiguous, sizes differing by at most one."""
        return range(self.rank * total // self.size, (self.rank + 1) * total // self.size)

    def vector(self, name: str, length: int) -> torch.Tensor:
        """A norm's weight, in float32."""
        return self.checkpoint.view(name, (length,)).to(torch.float32, copy=True).to(self.kernels.device)

    def column_parallel(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """This rank's outputs of the matrix [out, in] of `shape`, as [in, out / T]."""
        own = self.part(shape[0])
        return self.own(self.checkpoint.part(name, shape, rows=slice(own.start, own.stop)).T)

    def row_parallel(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """This rank's inputs of the matrix [out, in] of `shape`, as [in / T, out]; its products are partial sums."""
        own = self.part(shape[1])
        return self.own(self.checkpoint.part(name, shape, columns=slice(own.start, own.stop)).T)

    def own(self, mapped: torch.Tensor) -> torch.Tensor:
        """A contiguous copy in the compute type."""
        own = mapped.to(self.dtype, copy=True, memory_format=torch.contiguous_format)
        return own.to(self.kernels.device)
