"""Trace files of any content: read, or refused by name."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asap_ray.errors import ConfigError
from asap_ray.workload.trace_file import read_trace
from tests.nonsense import damaged, spoilt

ROW = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 5]}
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47,396,109\n"
QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
SEVERAL = settings(max_examples=100, deadline=None, suppress_health_check=QUIET)


def is_read(directory: Path, content: bytes) -> bool:
    """Whether it is a trace; any other error than a ConfigError is a bug."""
    path = directory / "trace"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        return all(request.timestamp_s >= 0 for request in read_trace(path))
    return False


@given(row=spoilt(ROW))
@SEVERAL
def test_a_spoilt_row_is_read_or_refused(tmp_path: Path, row: dict[str, object]) -> None:
    """Whatever its fields hold."""
    is_read(tmp_path, json.dumps(row).encode())


@given(content=damaged(AZURE) | damaged(json.dumps(ROW).encode()) | damaged(gzip.compress(AZURE)) | st.binary())
@SEVERAL
def test_damaged_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    """Truncated, reordered, overwritten, compressed or not."""
    is_read(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"timestamp": ' + b"9" * 400 + b', "input_length": 1, "output_length": 1}', "timestamp must be a number"),
        (b'{"a":' * 20_000, "not JSON"),
        (AZURE + b"2023-11-16 18:15:48," + b"9" * 5000 + b",1\n", "ContextTokens must be an integer"),
    ],
    ids=["a huge time", "deep nesting", "a huge count"],
)
def test_what_python_has_other_errors_for_is_refused_by_name(tmp_path: Path, content: bytes, text: str) -> None:
    """Found by the tests above, or looked for."""
    (tmp_path / "trace").write_bytes(content)

    with pytest.raises(ConfigError, match=text):
        read_trace(tmp_path / "trace")
