"""Replicas claim instances: none is owned twice, and one that still runs is taken before a new one is made."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import pytest

from asap_ray.actors.claims import Claims


class Cluster:
    """A control store, and who lives."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.alive: set[str] = set()
        self.running: set[str] = set()
        self.hung: set[str] = set()

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.values if key.startswith(prefix)]

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def put(self, key: str, value: str) -> bool:
        is_new = key not in self.values
        self.values.setdefault(key, value)
        return is_new

    def drop(self, key: str) -> None:
        self.values.pop(key, None)

    def take(self, owner: str, app: str = "asap") -> str:
        """Of a replica that has just come up."""
        self.alive.add(owner)
        return Claims(app, self, self.alive.__contains__, self.running.__contains__, self.end).take(owner)

    def end(self, owners: Collection[str]) -> list[str]:
        """Those that hang; Ray hears of it later."""
        return [owner for owner in owners if owner in self.hung]


@pytest.fixture
def cluster() -> Cluster:
    """Nobody has claimed anything."""
    return Cluster()


def test_every_replica_has_an_instance_of_its_own(cluster: Cluster) -> None:
    """The first has the application's name, as if it were alone."""
    assert [cluster.take(owner) for owner in "abc"] == ["asap", "asap:1", "asap:2"]


def test_a_dead_replicas_instance_is_taken_over(cluster: Cluster) -> None:
    """Never that of one that lives."""
    names = [cluster.take(owner) for owner in "abc"]
    cluster.alive -= {"b"}

    assert cluster.take("d") == names[1]


def test_devices_that_run_are_taken_over_first(cluster: Cluster) -> None:
    """Both owners are dead, but only one left its devices: nothing is loaded again."""
    for owner in "ab":
        cluster.take(owner)
    cluster.alive.clear()
    cluster.running = {"asap:1"}

    assert [cluster.take(owner) for owner in "cd"] == ["asap:1", "asap"]


def test_a_replica_that_drains_keeps_its_instance(cluster: Cluster) -> None:
    """Its successor of a redeployment begins another one."""
    cluster.take("old")

    assert cluster.take("new") == "asap:1"


def test_a_hung_replicas_instance_is_taken_over_once_it_is_dead(cluster: Cluster) -> None:
    """Ray may still name it; those that are well keep theirs."""
    names = [cluster.take(owner) for owner in "abc"]
    cluster.hung = {"b"}

    assert cluster.take("d") == names[1]


def test_applications_do_not_meet(cluster: Cluster) -> None:
    """Not even when one's name begins another's."""
    assert [cluster.take("a", "x"), cluster.take("b", "x/0"), cluster.take("c", "x")] == ["x", "x/0", "x:1"]


def test_a_claim_leaves_one_key(cluster: Cluster) -> None:
    """However often an instance changes hands."""
    for owner in "abc":
        cluster.take(owner)
        cluster.alive.clear()

    assert cluster.values == {"asap/0/2": "c"}


class Interleaved(Cluster):
    """Each call of one replica may let another one, or a death, come in between."""

    def __init__(self, random: random.Random) -> None:
        super().__init__()
        self._random = random
        self.owners = iter(f"r{n}" for n in range(8))
        self.taken: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        self._meanwhile()
        return super().get(key)

    def put(self, key: str, value: str) -> bool:
        self._meanwhile()
        return super().put(key, value)

    def _meanwhile(self) -> None:
        if self.taken and self._random.random() < 0.3:
            self.alive.discard(self._random.choice(sorted(self.taken)))
        if self._random.random() < 0.5 and (owner := next(self.owners, None)):
            self.start(owner)

    def start(self, owner: str) -> None:
        """A replica comes up, and others during it."""
        name = self.take(owner)
        self.taken[owner] = name


def owned(cluster: Interleaved) -> Iterator[str]:
    """Instances of living replicas."""
    return (name for owner, name in cluster.taken.items() if owner in cluster.alive)


@pytest.mark.parametrize("seed", range(200))
def test_no_instance_is_owned_twice(seed: int) -> None:
    """Whatever order replicas come up, look, write and die in."""
    cluster = Interleaved(random.Random(seed))
    for owner in cluster.owners:
        cluster.start(owner)

    assert sorted(set(owned(cluster))) == sorted(owned(cluster))
