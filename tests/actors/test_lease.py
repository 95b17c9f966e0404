"""The lease of a device: it runs out, it is renewed, and it says who else holds it."""

from __future__ import annotations

import threading

import pytest

from asap_ray.actors.lease import Lease

LONG_S = 60.0


def test_a_lease_nobody_renews_runs_out() -> None:
    """Devices that no frontend asks after end themselves."""
    expired = threading.Event()

    Lease(0.01, LONG_S, expired.set)

    assert expired.wait(LONG_S)


def test_a_renewal_can_bring_the_end_nearer() -> None:
    """The first lease covers a slow start; from the first question on, the shorter one counts."""
    expired = threading.Event()
    lease = Lease(10 * LONG_S, 0.01, expired.set)

    lease.renew("frontend")

    assert expired.wait(LONG_S)


def test_the_last_to_leave_may_end_the_device() -> None:
    """Of two frontends, as in a redeploy, the first that leaves leaves the device to the other."""
    lease = Lease(LONG_S, LONG_S, lambda: None)
    lease.renew("old")
    lease.renew("new")

    assert [lease.release("old"), lease.release("new")] == [False, True]


def test_a_renewal_postpones_the_end() -> None:
    """A device that is asked after outlives its first lease."""
    expired = threading.Event()
    lease = Lease(0.2, LONG_S, expired.set)

    lease.renew("frontend")

    assert not expired.wait(0.5)


def test_a_frontend_that_stopped_asking_no_longer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was killed does not keep the device from the last that leaves."""
    monkeypatch.setattr("asap_ray.actors.lease.FRESH_S", 0.0)
    lease = Lease(LONG_S, LONG_S, lambda: None)
    lease.renew("killed")

    assert lease.release("leaving")


def test_a_frontend_holds_a_lease_from_its_first_renewal_until_it_leaves() -> None:
    """What it has under way on the device is kept so long."""
    lease = Lease(LONG_S, LONG_S, lambda: None)

    before = lease.is_held_by("frontend")
    lease.renew("frontend")
    between = lease.is_held_by("frontend")
    lease.release("frontend")

    assert (before, between, lease.is_held_by("frontend")) == (False, True, False)


def test_a_frontend_that_was_killed_holds_no_lease_after_the_timeout() -> None:
    """It could not say that it leaves."""
    lease = Lease(LONG_S, 0.0, lambda: None)
    lease.renew("killed")

    assert not lease.is_held_by("killed")
