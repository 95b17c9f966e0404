"""Memory that another process maps, and that costs what is touched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asap_ray.kvcache.page_memory import PageMemory

READ = """
import sys
from asap_ray.kvcache.page_memory import PageMemory
print(PageMemory.open(*map(int, sys.argv[1:])).bytes[[0, -1]].tolist())
"""


def test_another_process_reads_what_was_written() -> None:
    """By process, descriptor and size, which is all a registration has."""
    memory = PageMemory.create("test", 10_000)
    memory.bytes[0], memory.bytes[-1] = 7, 9
    where = [str(number) for number in (memory.pid, memory.fd, memory.num_bytes)]

    read = subprocess.run([sys.executable, "-c", READ, *where], capture_output=True, text=True, check=True)

    assert read.stdout == "[7, 9]\n"


def test_memory_that_nobody_touches_costs_nothing() -> None:
    """A terabyte is more than there is."""
    memory = PageMemory.create("test", 1 << 40)
    memory.bytes[1 << 39] = 1

    (line,) = re.findall(r"memfd:asap-test.*?Rss: *(\d+) kB", Path("/proc/self/smaps").read_text(), re.DOTALL)
    assert int(line) <= 2048  # a huge page at most


def test_another_size_is_refused() -> None:
    """Both are named: the two sides have different caches in mind."""
    memory = PageMemory.create("test", 4096)

    with pytest.raises(ValueError, match=r"memfd:asap-test.* of 4096 bytes, not pages of 8192"):
        PageMemory.open(memory.pid, memory.fd, 8192)


def test_what_is_no_such_memory_is_refused() -> None:
    """A descriptor may be somebody else's by now."""
    with Path(__file__).open() as file, pytest.raises(ValueError, match=r"test_page_memory\.py of"):
        PageMemory.open(os.getpid(), file.fileno(), 4096)


def test_the_descriptor_goes_with_the_memory() -> None:
    """Nothing is left open."""
    memory = PageMemory.create("test", 4096)
    fd = memory.fd
    del memory

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
