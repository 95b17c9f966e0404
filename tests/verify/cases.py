"""The instances of the models: those that must hold, and those with one mistake that must be found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

HOLDS: Final = ""
DEADLOCK: Final = "invalid end state"
WRONG_ITEM: Final = "assertion violated"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with its `-D` names, and how spin's search must end."""

    name: str
    model: str = "protocol.pml"
    defines: dict[str, int | str] = field(default_factory=dict)
    finds: str = HOLDS
    shuffled: bool = False  # a mistake far from the first path is met sooner on a random one (fixed seed)
    quick: bool = False  # a few seconds and megabytes: the tests run it


def protocol(
    name: str, sizes: str, *, finds: str = HOLDS, quick: bool = False, shuffled: bool = False, **options: int | str
) -> Case:
    """`sizes` are D, T, E and the messages a slot."""
    defines: dict[str, int | str] = dict(zip(("D", "T", "E", "LAYERS"), map(int, sizes.split()), strict=True))
    defines |= {"QUEUE": 1, **options}
    return Case(name=name, defines=defines, finds=finds, quick=quick, shuffled=shuffled)


def doorbell(name: str, *, finds: str = HOLDS, quick: bool = True, **options: int | str) -> Case:
    """Two who ring, two who wait for both."""
    defines = {"RINGERS": 2, "WAITERS": 2, **options}
    return Case(name=name, model="doorbell.pml", defines=defines, finds=finds, quick=quick)


HOLDING: Final = (
    doorbell("doorbell"),
    protocol("one of each", "1 1 1 3", quick=True),
    protocol("any order of slots", "1 1 1 2", ANY_ORDER=1),
    protocol("two ranks", "1 2 1 1", quick=True),
    protocol("two devices", "1 1 2 1", FULL=1),
    protocol("abort", "1 1 1 2", ABORT=1),
    protocol("device restarts", "1 1 1 1", quick=True, MOE_CRASH=1),
    protocol("group restarts", "1 1 1 1", GROUP_CRASH=1),
    protocol("two devices, empty messages", "1 1 2 1"),
    protocol("two groups", "2 1 1 1"),
    protocol("device restarts, two layers", "1 1 1 2", MOE_CRASH=1),
    protocol("device restarts, two ranks", "1 2 1 1", FULL=1, MOE_CRASH=1),
    protocol("group restarts, two layers", "1 1 1 2", GROUP_CRASH=1),
    protocol("solo batches of a dead group", "1 1 1 1", GROUP_CRASH=1, SOLO=1),
    protocol("solo batches of a new group", "1 1 1 1", GROUP_CRASH=1, SOLO=2),
)

BROKEN: Final = (
    doorbell("waiter looks first", finds=DEADLOCK, quick=False, BROKEN="LOOK_FIRST"),
    doorbell("ringer rings first", finds=DEADLOCK, BROKEN="RING_FIRST"),
    protocol("one result region", "1 1 1 1", finds=DEADLOCK, quick=True, FULL=1, BROKEN="ONE_REGION"),
    protocol("bit before payload", "1 1 1 1", finds=WRONG_ITEM, quick=True, BROKEN="BIT_FIRST"),
    protocol("credit before headers", "1 1 1 2", finds=WRONG_ITEM, BROKEN="CREDIT_FIRST"),
    protocol("credit before rows", "1 1 1 1", finds=WRONG_ITEM, GROUP_CRASH=1, BROKEN="CREDIT_EARLY"),
    protocol("reply before results", "1 1 1 2", finds=DEADLOCK, BROKEN="REPLY_FIRST"),
    protocol("a deaf wait", "1 1 1 2", finds=DEADLOCK, ABORT=1, BROKEN="DEAF"),
    protocol("answered twice", "1 1 1 1", finds=WRONG_ITEM, quick=True, FULL=1, MOE_CRASH=1, BROKEN="RESEND_BLIND"),
    protocol("nothing sent again", "1 1 1 1", finds=DEADLOCK, MOE_CRASH=1, BROKEN="NO_RESEND"),
    protocol("only owed rows sent again", "1 2 1 1", finds=DEADLOCK, FULL=1, MOE_CRASH=1, BROKEN="OWED_ONLY"),
    protocol("older message kept", "1 2 1 2", finds=WRONG_ITEM, FULL=1, MOE_CRASH=1, BROKEN="KEEP_OLDER"),
    protocol("replaced, not dead", "1 1 1 1", finds=WRONG_ITEM, FULL=1, MOE_CRASH=1, BROKEN="HUNG"),
    protocol("dead group's buffer", "1 1 2 1", finds=WRONG_ITEM, shuffled=True, GROUP_CRASH=1, BROKEN="SAME_BUFFER"),
    protocol(
        "a dead group's other slot", "1 1 1 1", finds=WRONG_ITEM, quick=True, GROUP_CRASH=1, SOLO=2, BROKEN="OWN_SLOT"
    ),
    protocol("epoch told late", "1 1 1 1", finds=DEADLOCK, FULL=1, GROUP_CRASH=1, BROKEN="TOLD_LATE"),
)
