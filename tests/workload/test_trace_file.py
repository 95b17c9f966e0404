"""Reading Mooncake JSONL and Azure CSV."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from asap_ray.errors import ConfigError
from asap_ray.workload.trace import TraceRequest
from asap_ray.workload.trace_file import bundled_trace, read_trace

MOONCAKE = '{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 5]}\n'
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.1805900,396,109\n"
)
SHARED_TRACES = Path(__file__).parents[3] / "shared" / "traces"


def written(directory: Path, text: str) -> Path:
    """A trace file of this content; its name says nothing."""
    path = directory / "trace"
    path.write_text(text)
    return path


def test_mooncake_times_are_milliseconds(tmp_path: Path) -> None:
    """All four fields are read."""
    expected = TraceRequest(timestamp_s=1.5, input_length=600, output_length=7, hash_ids=(0, 5))

    assert read_trace(written(tmp_path, MOONCAKE)) == [expected]


def test_azure_times_count_from_the_first_row(tmp_path: Path) -> None:
    """Dates with seven decimals are understood."""
    requests = read_trace(written(tmp_path, AZURE))

    assert [round(each.timestamp_s, 6) for each in requests] == [0.0, 0.5]
    assert [each.input_length for each in requests] == [374, 396]


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    """The name of the file plays no part."""
    path = tmp_path / "trace.txt"
    path.write_bytes(gzip.compress(MOONCAKE.encode()))

    assert read_trace(path)[0].input_length == 600


def test_requests_come_in_order_of_time(tmp_path: Path) -> None:
    """An unsorted file is sorted."""
    later, earlier = MOONCAKE, MOONCAKE.replace("1500", "10")

    assert [each.timestamp_s for each in read_trace(written(tmp_path, later + earlier))] == [0.01, 1.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MOONCAKE + "{oops\n", r":2: not JSON"),
        (MOONCAKE + "\n[1]\n", r":3: a JSON object is expected, not '\[1\]'"),
        (MOONCAKE.replace("600", "0"), r":1: input_length must be an integer of at least 1, not 0"),
        (MOONCAKE.replace("600", "6.5"), r":1: input_length must be an integer of at least 1, not 6.5"),
        (MOONCAKE.replace("1500", "true"), r":1: timestamp must be a number of at least 0, not True"),
        (MOONCAKE.replace("1500", "NaN"), r":1: timestamp must be a number of at least 0, not nan"),
        (MOONCAKE.replace("[0, 5]", "[0, -5]"), r":1: hash_ids must be a list of integers of at least 0"),
        (MOONCAKE.replace("output", "out"), r":1: field 'output_length' is missing; the line has timestamp, "),
        (AZURE + "2023-11-16 18:15:48,x,1\n", r":4: ContextTokens must be an integer of at least 1, not 'x'"),
        (AZURE + "yesterday,5,1\n", r":4: TIMESTAMP must be a date such as .*, not 'yesterday'"),
        (AZURE + "2023-11-16 18:15:48,5\n", r":4: field 'GeneratedTokens' is missing"),
        (AZURE.splitlines()[0], r": holds no requests"),
        ("a,b\n1,2\n", r": neither Mooncake JSONL nor Azure CSV; .* is 'a,b'"),
        ("", r": neither Mooncake JSONL nor Azure CSV"),
    ],
)
def test_malformed_file_is_refused_by_line_field_and_value(tmp_path: Path, text: str, message: str) -> None:
    """The text is enough to find the mistake with an editor."""
    with pytest.raises(ConfigError, match=message) as caught:
        read_trace(written(tmp_path, text))

    assert str(tmp_path / "trace") in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """With its name, before anything starts."""
    with pytest.raises(ConfigError, match=r"cannot read trace .*nothing\.jsonl"):
        read_trace(tmp_path / "nothing.jsonl")


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    """A download that broke off is not a shorter trace."""
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(MOONCAKE.encode())[:-10])

    with pytest.raises(ConfigError, match="cannot read trace"):
        read_trace(path)


def test_bundled_trace_is_two_real_minutes() -> None:
    """429 conversation requests, as NOTICE.md says."""
    requests = read_trace(bundled_trace())

    assert len(requests) == 429
    assert 119 < requests[-1].timestamp_s < 120


def test_bundled_trace_is_an_excerpt_of_the_published_one() -> None:
    """Row for row the first two minutes of the five-minute window."""
    source = SHARED_TRACES / "mooncake_conversation_5min.jsonl"
    if not source.exists():
        pytest.skip(f"{source} is not here")

    assert read_trace(bundled_trace()) == read_trace(source)[:429]
