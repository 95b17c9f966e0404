"""Images: hadolint's rules, and ours: pinned, with an init, without root, without downloads by URL."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, DOCKERFILES

every_image = pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)


def instructions(file: Path) -> list[tuple[str, str]]:
    """Its instructions with their arguments, lines joined, comments left out."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


@every_image
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    """With the rules of deploy/docker/hadolint.yaml."""
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [hadolint, "--config", DEPLOY / "docker/hadolint.yaml", file]

    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""


@every_image
def test_every_base_is_pinned(file: Path) -> None:
    """To a release's tag with a number in it."""
    bases = [rest.split()[0] for name, rest in instructions(file) if name == "FROM"]

    assert [base for base in bases if not re.search(r":[^:/]*\d+\.\d+", base)] == []


@every_image
def test_an_image_starts_as_nobody_under_an_init(file: Path) -> None:
    """A user by number, as Kubernetes wants to check it."""
    last = dict(instructions(file))

    assert (last["USER"], last["ENTRYPOINT"]) == ("10001", '["/usr/bin/tini", "--", "asap-ray"]')


@every_image
def test_ray_asks_for_its_token_in_an_image(file: Path) -> None:
    """Unless whoever runs it says otherwise."""
    assert "RAY_AUTH_MODE=token" in dict(instructions(file))["ENV"].split()


@every_image
def test_nothing_is_fetched_by_address(file: Path) -> None:
    """Package managers only; no host but the registry of a FROM."""
    others = [f"{name} {rest}" for name, rest in instructions(file) if name != "FROM"]

    assert [line for line in others if "://" in line or re.match(r"ADD|RUN .*\b(curl|wget) +-?\S*[/.]", line)] == []
