"""Trace files: Mooncake JSONL and Azure CSV, plain or gzipped, told apart by their content."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.resources
import json
import re
import sys
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from asap_ray.errors import ConfigError
from asap_ray.workload.trace import TraceRequest

GZIP_MAGIC: Final = b"\x1f\x8b"
_INTEGER: Final = re.compile("[0-9]{1,18}")
AZURE_FIELDS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def bundled_trace() -> Path:
    """Two minutes of a real conversation trace, shipped with the product; see the NOTICE.md beside it."""
    traces = importlib.resources.files("asap_ray.workload") / "traces"
    return Path(str(traces / "mooncake_conversation_2min.jsonl"))


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file, in order of time.

    Azure's dates become seconds since its first row; Mooncake's times are seconds since its own zero.

    Raises:
        ConfigError: the file cannot be read, is of neither format, is empty, or a line of it is
            malformed; names the file, and the line, field and value.
    """
    lines = _read_lines(path)
    first = lines[0][1] if lines else ""
    if first.startswith("{"):
        requests = [_mooncake(_json_row(f"{path}:{number}", line)) for number, line in lines]
    elif set(AZURE_FIELDS) <= set(first.split(",")):
        requests = _azure(path, lines)
    else:
        raise ConfigError(
            f"{path}: neither Mooncake JSONL nor Azure CSV; its first line should be a JSON object "
            f"or the header {','.join(AZURE_FIELDS)}, and is {first[:80]!r}"
        )
    if not requests:
        raise ConfigError(f"{path}: holds no requests")
    return sorted(requests, key=lambda request: request.timestamp_s)


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines that are not blank."""
    try:
        content = path.read_bytes()
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
        lines = content.decode("utf-8-sig").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read trace {path}: {error}") from error
    return [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]


@dataclass(frozen=True, slots=True)
class _Row:
    """Fields of one line, checked as they are read."""

    where: str  # file:line
    fields: dict[str, Any]

    def get(self, name: str) -> Any:
        if name not in self.fields:
            raise ConfigError(f"{self.where}: field {name!r} is missing; the line has {', '.join(self.fields)}")
        return self.fields[name]

    def number(self, name: str) -> float:
        value = self.get(name)
        if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
            raise self.wrong(name, "a number of at least 0")
        return float(value)

    def integer(self, name: str, least: int) -> int:
        value = self.get(name)
        if type(value) is not int or value < least:
            raise self.wrong(name, f"an integer of at least {least}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list that may be missing."""
        values = self.fields.get(name, [])
        if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
            raise self.wrong(name, "a list of integers of at least 0")
        return tuple(values)

    def wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: {name} must be {expected}, not {self.fields[name]!r:.80}")


def _json_row(where: str, line: str) -> _Row:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error}): {line[:80]!r}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{where}: a JSON object is expected, not {line[:80]!r}")
    return _Row(where, fields)


def _mooncake(row: _Row) -> TraceRequest:
    return TraceRequest(
        timestamp_s=row.number("timestamp") / 1e3,  # ms
        input_length=row.integer("input_length", least=1),
        output_length=row.integer("output_length", least=0),
        hash_ids=row.integers("hash_ids"),
    )


def _azure(path: Path, lines: list[tuple[int, str]]) -> list[TraceRequest]:
    names = lines[0][1].split(",")
    requests = []
    for number, line in lines[1:]:
        cells = [int(cell) if _INTEGER.fullmatch(cell) else cell for cell in line.split(",")]
        row = _Row(f"{path}:{number}", dict(zip(names, cells, strict=False)))
        requests.append(
            TraceRequest(
                timestamp_s=_date_s(row, "TIMESTAMP"),
                input_length=row.integer("ContextTokens", least=1),
                output_length=row.integer("GeneratedTokens", least=0),
            )
        )
    start_s = min((request.timestamp_s for request in requests), default=0.0)
    return [dataclasses.replace(request, timestamp_s=request.timestamp_s - start_s) for request in requests]


def _date_s(row: _Row, name: str) -> float:
    try:
        date = datetime.fromisoformat(row.get(name))
    except (ValueError, TypeError):
        raise row.wrong(name, "a date such as 2023-11-16 18:15:46.6805900") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
