"""An instance over three hosts, each with a network and processes of its own; one is cut off."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.fabric.drive import PROMPTS
from tests.fabric.hosts import Host, can_have_hosts, hosts

NUM_HOSTS: Final = 3

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Three hosts, each a node of one Ray cluster."""
    pytest.importorskip("nixl", reason="needs the extra asap-ray[nixl]")
    if not can_have_hosts():
        pytest.skip("needs root and namespaces")
    with hosts(NUM_HOSTS, tmp_path_factory.mktemp("hosts")) as started:
        yield started


@pytest.fixture(scope="module")
def story(cluster: list[Host], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything the driver says, under its first key, the last of each; unplugs what it asks for."""
    log = tmp_path_factory.mktemp("drive") / "log"
    said: dict[str, Any] = {}
    with cluster[0].popen([sys.executable, "-m", "tests.fabric.drive", str(tiny_model), str(NUM_HOSTS)], log) as driver:
        assert driver.stdout
        assert driver.stdin
        for line in filter(lambda line: line.startswith("{"), driver.stdout):
            what = json.loads(line)
            said[next(iter(what))] = what
            if "unplug" in what:
                place = said["places"]["places"][what["unplug"]]
                next(host for host in cluster if host.name == place).unplug()
                driver.stdin.write("done\n")
                driver.stdin.flush()
    assert "after" in said, log.read_text()[-4000:]
    return said


def test_every_device_is_on_a_host_of_its_own(story: dict[str, Any]) -> None:
    """The cluster has one NPU a host, so that nothing could share memory."""
    assert sorted(story["places"]["places"].values()) == ["host1", "host2", "host3"]


def test_tokens_are_those_of_the_reference(story: dict[str, Any], tiny_model: Path) -> None:
    """Rows that crossed the network are rows; both groups."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        expected = [int(model(torch.tensor([ids])).logits[0, -1].argmax()) for ids in PROMPTS]

    assert story["places"]["tokens"] == [expected, expected]


def test_a_replay_is_answered_whole(story: dict[str, Any]) -> None:
    """A minute of the bundled trace over HTTP."""
    assert list(story["whole"]["whole"]) == ["200"]


def test_a_host_that_is_cut_off_in_a_replay_takes_nobody_along(story: dict[str, Any]) -> None:
    """Requests of its group are answered by the other one, or with 503; most of all are answered."""
    statuses = story["cut"]["cut"]

    assert set(statuses) <= {"200", "503"}
    assert statuses["200"] > 0.9 * sum(statuses.values())
    assert story["lost"]["lost"] == story["cut"]["victim"]


def test_the_rest_answers_as_before(story: dict[str, Any]) -> None:
    """The device and the other group still reach each other."""
    assert story["rest"]["rest"] == story["places"]["tokens"][:1]


def test_a_host_that_stays_away_is_named(story: dict[str, Any]) -> None:
    """No other host has room for its group: the instance is given up, and refuses prompts."""
    assert f"asap:attention:{story['cut']['victim']}" in story["given_up"]["given_up"]
    assert list(story["after"]["after"]) == ["503"]
