"""What a host of one's own gets: a systemd unit, scripts for jobs, Prometheus and Grafana by file."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dashboards.build import HERE as DASHBOARDS
from tests.deploy.files import DEPLOY, SCRIPTS

UNIT = DEPLOY / "systemd/asap-ray.service"
KUBERNETES = DEPLOY / "monitoring/prometheus-kubernetes.yml"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a command that exists on this machine; systemd complains of unknown keys and values."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/asap-ray/bin/asap-ray", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_says_how_ray_authenticates_and_is_not_root() -> None:
    """And SIGTERM reaches the command first, so that it can drain."""
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    lines = [line for line in UNIT.read_text().splitlines() if not line.startswith("Environment=HOME")]
    unit.read_string("\n".join(lines))
    service = unit["Service"]

    assert "RAY_AUTH_MODE=token" in service["Environment"].split()
    assert (service["User"], service["KillMode"]) == ("asap", "mixed")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_one(script: Path) -> None:
    """Executable, and read by sh without a complaint."""
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, check=False)

    assert (os.access(script, os.X_OK), done.returncode, done.stderr) == (True, 0, "")


@pytest.fixture
def fake_ray(tmp_path: Path) -> dict[str, str]:
    """An environment in which `ray` prints its arguments, one a line."""
    ray = tmp_path / "ray"
    ray.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    ray.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "RAY_AUTH_MODE": "token"}


def test_a_replay_job_passes_its_words_on(fake_ray: dict[str, str]) -> None:
    """Spaces survive; the options come last."""
    command = [DEPLOY / "jobs/replay.sh", "/data/a b.jsonl", "/out", "--rate", "2"]
    printed = subprocess.run(command, env=fake_ray, capture_output=True, text=True, check=True).stdout

    replay = ["asap-ray", "replay", "--app", "asap", "--trace", "/data/a b.jsonl", "--out", "/out", "--rate", "2"]
    assert printed.splitlines() == ["job", "submit", "--address", "http://127.0.0.1:8265", "--", *replay]


def test_a_replay_job_wants_to_know_how_ray_authenticates(fake_ray: dict[str, str]) -> None:
    """Ray would guess, by what lies in the home directory."""
    del fake_ray["RAY_AUTH_MODE"]
    done = subprocess.run([DEPLOY / "jobs/replay.sh", "/t", "/o"], env=fake_ray, capture_output=True, check=False)

    assert (done.returncode, b"RAY_AUTH_MODE" in done.stderr) == (2, True)


def test_monitoring_is_installed_where_debian_looks(tmp_path: Path) -> None:
    """All four dashboards; a prometheus.yml of the host's own is kept."""
    (tmp_path / "etc/prometheus").mkdir(parents=True)
    (tmp_path / "etc/prometheus/prometheus.yml").write_text("mine")
    subprocess.run(
        [DEPLOY / "monitoring/install.sh"], env=os.environ | {"DESTDIR": str(tmp_path)}, capture_output=True, check=True
    )
    (provider,) = yaml.safe_load((tmp_path / "etc/grafana/provisioning/dashboards/asap.yaml").read_text())["providers"]
    boards = tmp_path / provider["options"]["path"].lstrip("/")

    assert (tmp_path / "etc/prometheus/prometheus.yml").read_text() == "mine"
    assert {board.name for board in boards.iterdir()} == {board.name for board in (DASHBOARDS / "grafana").iterdir()}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
def test_prometheus_takes_the_scrape_of_pods(tmp_path: Path) -> None:
    """With targets by name in place of the pods': Debian's promtool is built without Kubernetes."""
    config = yaml.safe_load(KUBERNETES.read_text())
    pods = [{"role": "pod", "namespaces": {"own_namespace": True}}]
    assert [scrape.pop("kubernetes_sd_configs") for scrape in config["scrape_configs"]] == [pods, pods]
    for scrape in config["scrape_configs"]:
        scrape["static_configs"] = [{"targets": ["127.0.0.1:8000"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DASHBOARDS / "prometheus/asap.rules.yml", tmp_path)
    command = ["promtool", "check", "config", tmp_path / "prometheus.yml"]

    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""
