"""A process that hangs is told from one that is well, and ended, by what it writes into its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asap_ray.actors import pulse

PATIENCE_S = 20.0

CHILD = """
import sys
from asap_ray.actors.pulse import Pulse
pulse = Pulse(sys.argv[1])
if sys.argv[2] == "beats":
    pulse.beat()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["beats"])
def owner(request: pytest.FixtureRequest) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A process that has beaten once, or not yet, and the name of its actor."""
    name = f"SERVE_REPLICA::test#Frontend#{os.getpid()}"
    command = [sys.executable, "-c", CHILD, name, request.param]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout
        child.stdout.readline()
        yield name, child
        child.kill()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any silence is too long."""
    monkeypatch.setattr(pulse, "SILENT_S", 0.0)
    monkeypatch.setattr(pulse, "WATCH_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_one_that_has_stood_still_for_long_is_dead_afterwards(owner: tuple[str, subprocess.Popen[str]]) -> None:
    """Stopped, it would go on some day, beside its successor."""
    name, child = owner
    os.kill(child.pid, signal.SIGSTOP)

    assert (pulse.end_hung([name]), child.wait(PATIENCE_S)) == ([name], -signal.SIGKILL)


def test_one_that_has_beaten_lately_lives(owner: tuple[str, subprocess.Popen[str]]) -> None:
    """A slow one is not ended."""
    name, child = owner

    assert (pulse.end_hung([name]), child.poll()) == ([], None)


@pytest.mark.usefixtures("impatient")
def test_one_that_beats_again_while_it_is_watched_lives(
    owner: tuple[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the machine stood still, and who looked with it."""
    name, child = owner

    def meanwhile(_: float) -> None:
        monkeypatch.setattr(pulse, "SILENT_S", PATIENCE_S)  # as if it had just beaten

    monkeypatch.setattr(pulse.time, "sleep", meanwhile)

    assert (pulse.end_hung([name]), child.poll()) == ([], None)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("owner", ["starts"], indirect=True)
def test_one_that_has_not_beaten_yet_lives(owner: tuple[str, subprocess.Popen[str]]) -> None:
    """It reads its tokenizer, as long as that takes."""
    name, child = owner

    assert (pulse.end_hung([name]), child.poll()) == ([], None)


@pytest.mark.usefixtures("impatient")
def test_one_that_is_not_found_again_is_not_said_to_be_dead(
    owner: tuple[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim stays: who cannot be found may live."""
    name, _ = owner
    monkeypatch.setattr(pulse, "_silent_s", lambda _: 1.0)
    monkeypatch.setattr(pulse, "_found", lambda _: iter(()))

    assert pulse.end_hung([name]) == []


@pytest.mark.usefixtures("impatient")
def test_a_stranger_with_the_number_of_one_that_has_gone_lives(
    owner: tuple[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at again before the signal is what the descriptor is, not whether there is one."""
    name, stranger = owner
    monkeypatch.setattr(pulse, "_silent_s", lambda _: 1.0)
    monkeypatch.setattr(pulse, "_found", lambda _: iter([Path(f"/proc/{stranger.pid}/fd/0")]))

    assert (pulse.end_hung([name]), stranger.poll()) == ([], None)


def test_one_that_is_elsewhere_is_left_alone() -> None:
    """Nobody here can tell."""
    assert pulse.end_hung(["SERVE_REPLICA::test#Frontend#elsewhere"]) == []
