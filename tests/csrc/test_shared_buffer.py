"""Shared memory without a name: opened through /proc, gone with its last process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asap_ray import _native

OWNER = """
from asap_ray import _native
buffer = _native.SharedBuffer.create("owner", 8192)
memoryview(buffer)[5000] = 42
print(buffer.pid, buffer.fd, flush=True)
input()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process that holds a buffer of 8192 bytes, with 42 at 5000."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.kill()


def place_of(owner: subprocess.Popen[str]) -> tuple[int, int]:
    """Where the owner says its buffer is."""
    assert owner.stdout is not None
    pid, fd = map(int, owner.stdout.readline().split())
    return pid, fd


def test_a_peer_sees_what_the_owner_wrote(owner: subprocess.Popen[str]) -> None:
    """Across processes, through /proc/PID/fd/FD."""
    buffer = _native.SharedBuffer.open(*place_of(owner), 8192)

    assert memoryview(buffer)[5000] == 42


def test_a_peer_keeps_the_buffer_when_its_owner_is_killed(owner: subprocess.Popen[str]) -> None:
    """SIGKILL of the creator takes nothing away from those who mapped it."""
    buffer = _native.SharedBuffer.open(*place_of(owner), 8192)
    owner.kill()
    owner.wait()
    view = memoryview(buffer)
    view[0] = 1

    assert (view[0], view[5000]) == (1, 42)


def test_a_dead_owner_is_an_os_error(owner: subprocess.Popen[str]) -> None:
    """The text names the process."""
    pid, fd = place_of(owner)
    owner.kill()
    owner.wait()

    with pytest.raises(FileNotFoundError, match=f"buffer of process {pid}"):
        _native.SharedBuffer.open(pid, fd, 8192)


def test_another_size_is_refused() -> None:
    """Two sides with different configurations."""
    buffer = _native.SharedBuffer.create("size", 4096)

    with pytest.raises(ValueError, match="has 4096 bytes, expected 8192"):
        _native.SharedBuffer.open(buffer.pid, buffer.fd, 8192)


def test_a_descriptor_of_something_else_is_refused(tmp_path: Path) -> None:
    """A process id used again must not lend us its files."""
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(4096)

        with pytest.raises(ValueError, match="not an asap buffer"):
            _native.SharedBuffer.open(os.getpid(), file.fileno(), 4096)


def test_only_its_user_may_open_it() -> None:
    """Mode 0600, whatever the umask."""
    buffer = _native.SharedBuffer.create("mode", 4096)

    assert os.fstat(buffer.fd).st_mode & 0o777 == 0o600


def test_its_size_is_sealed() -> None:
    """A peer that shrank it would kill everyone else with SIGBUS."""
    buffer = _native.SharedBuffer.create("seal", 4096)

    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fd, 0)


def test_nothing_is_left_in_dev_shm() -> None:
    """No name anywhere but in /proc."""
    before = set(Path("/dev/shm").iterdir())
    buffer = _native.SharedBuffer.create("nameless", 4096)

    assert Path(f"/proc/self/fd/{buffer.fd}").readlink().name == "memfd:asap-nameless (deleted)"
    assert set(Path("/dev/shm").iterdir()) == before


def test_a_buffer_starts_as_zeros() -> None:
    """Flags are clear before anyone has run."""
    assert bytes(_native.SharedBuffer.create("zeros", 5000)) == bytes(5000)
