"""Every Serve file is what Ray and we take, and listens where nobody else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from asap_ray.actors.app import build_app
from asap_ray.actors.decode_app import build_decode_app
from asap_ray.cli.serve import read_config
from asap_ray.errors import ConfigError
from asap_ray.spec import paper
from tests.deploy.files import DEPLOY, SERVE_FILES, serve_configs

every_file = pytest.mark.parametrize("file", SERVE_FILES, ids=lambda file: file.stem)


def parsed(file: Path) -> dict[str, Any]:
    """Its content."""
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    return content


@every_file
def test_a_serve_file_is_taken(file: Path) -> None:
    """By Ray's schema and by our strict configuration; an application's name is its actors' prefix."""
    configs = serve_configs(parsed(file))

    assert [config.name for config in configs.values()] == list(configs)
    builders = {f"{build.__module__}:{build.__name__}" for build in (build_app, build_decode_app)}
    assert {each["import_path"] for each in parsed(file)["applications"]} - builders == set()


@every_file
def test_a_serve_file_listens_on_the_loopback(file: Path) -> None:
    """Ray's own default is all interfaces."""
    assert parsed(file)["http_options"]["host"] == "127.0.0.1"


def test_the_supernode_is_the_papers_instance() -> None:
    """Table 1, as the simulator has it."""
    config = serve_configs(parsed(DEPLOY / "serve/supernode.yaml"))["asap"]

    assert (config.parallel, config.prefill) == (paper().parallel, paper().prefill)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ((), "unknown to Ray Serve: misspelt"),
        (("http_options",), "unknown to Ray Serve: http_options.misspelt"),
        (("applications", 0), "unknown to Ray Serve: applications.misspelt"),
        (("applications", 0, "args"), "unknown key 'misspelt' in the configuration"),
        (("applications", 0, "args", "parallel"), "unknown key 'misspelt' in parallel"),
    ],
)
def test_a_misspelt_key_is_refused(where: tuple[str | int, ...], message: str) -> None:
    """Ray would ignore it outside of `args`."""
    toy = parsed(DEPLOY / "serve/toy.yaml")
    inside: Any = toy
    for step in where:
        inside = inside[step]
    inside["misspelt"] = 1

    with pytest.raises(ConfigError, match=message):
        serve_configs(toy)


def test_systemds_configuration_is_taken() -> None:
    """By what reads `asap-ray serve --config`; the key is where LoadCredential= puts it."""
    config = read_config(DEPLOY / "systemd/serve.yaml")

    assert config.api_key_from == "file:/run/credentials/asap-ray.service/api-key"
