"""The door of a synchronous worker: steps in, tokens and the ends of steps out."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from asap_ray.backends.host_lockstep import STEP_DONE, StepPipe
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.errors import Closed
from asap_ray.messages import Events, Step, decode, encode

BATCH = Batch((Request(request_id="a", num_tokens=1, arrival_s=0.0, token_ids=b"\1\0\0\0"),))


def test_tokens_come_before_the_end_of_their_step() -> None:
    """A worker says that a step is over when it asks for the next one, and not before the first."""
    ours, theirs = Pipe()
    door = StepPipe(theirs)
    share = (BATCH, Batch(()))
    token = Token(request_id="a", token_id=7, finish_reason="length")
    for _ in range(2):
        ours.send_bytes(encode(Step(share)))

    assert drive(door.step()) == share
    drive(door.deliver(BATCH, (token,), Stamps()))
    assert drive(door.step()) == share

    assert decode(Events, ours.recv_bytes()).tokens == (token,)
    assert ours.recv_bytes() == STEP_DONE
    assert not ours.poll()


def test_a_closed_pipe_ends_the_worker() -> None:
    """Nobody is left to give steps."""
    ours, theirs = Pipe()
    ours.close()

    with pytest.raises(Closed, match="whoever gives the steps"):
        drive(StepPipe(theirs).step())
