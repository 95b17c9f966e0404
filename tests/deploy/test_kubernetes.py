"""Manifests: KubeRay's fields, Kubernetes' pods, Ray's Serve schema, our configuration, and what we promise of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pydantic
import pytest
import ray
import yaml

from tests.deploy.files import MANIFESTS, serve_configs
from tests.deploy.rayservice import RayService

KUBERNETES = kubernetes_validate.latest_version()
KEY = {"name": "ASAP_API_KEY", "valueFrom": {"secretKeyRef": {"name": "asap-api-key", "key": "api-key"}}}

every_manifest = pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)


def read(file: Path) -> RayService:
    """A manifest as KubeRay takes it."""
    return RayService.model_validate(yaml.safe_load(file.read_text()))


def pods(service: RayService) -> list[dict[str, Any]]:
    """Its pods, the head first, as KubeRay would make them."""
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **group.template}
        for group in service.spec.rayClusterConfig.groups
    ]


@every_manifest
def test_a_manifest_has_kuberays_fields_only(file: Path) -> None:
    """And the Ray of the image."""
    assert read(file).spec.rayClusterConfig.rayVersion == ray.__version__


def test_an_unknown_field_is_refused() -> None:
    """What the two tests around this one rest on."""
    manifest = yaml.safe_load(MANIFESTS[0].read_text())
    manifest["spec"]["rayClusterConfig"]["headGroupSpec"]["templates"] = {}
    with pytest.raises(pydantic.ValidationError, match="templates"):
        RayService.model_validate(manifest)

    (pod, *_) = pods(read(MANIFESTS[0]))
    pod["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@every_manifest
def test_pods_are_taken_by_kubernetes(file: Path) -> None:
    """The core API's own schema, no unknown field."""
    for pod in pods(read(file)):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@every_manifest
def test_the_served_instance_fits_the_places_of_one_pod(file: Path) -> None:
    """Devices share memory: one pod's NPUs, logical or the device plugin's, are as many as the instance has."""
    service = read(file)
    config = serve_configs(yaml.safe_load(service.spec.serveConfigV2))["asap"]
    logical = [
        json.loads(json.loads(group.rayStartParams["resources"]))["NPU"]
        for group in service.spec.rayClusterConfig.groups
        if "resources" in group.rayStartParams
    ]
    plugged = [
        int(quantity)
        for pod in pods(service)
        for name, quantity in pod["spec"]["containers"][0]["resources"]["limits"].items()
        if name.startswith("huawei.com/")
    ]

    assert logical == [config.parallel.num_devices]
    assert plugged in ([], logical)


@every_manifest
def test_who_may_ask_is_said(file: Path) -> None:
    """Ray's token for Ray; for prompts a key from a secret, in every pod where the frontend may be."""
    service = read(file)
    config = serve_configs(yaml.safe_load(service.spec.serveConfigV2))["asap"]

    assert (service.spec.rayClusterConfig.authOptions.mode, config.api_key_from) == ("token", "env:ASAP_API_KEY")
    assert [KEY in pod["spec"]["containers"][0]["env"] for pod in pods(service)] == [True] * len(pods(service))


@every_manifest
def test_pods_run_without_privileges_and_reap_their_children(file: Path) -> None:
    """KubeRay replaces the image's entry point and with it the init; the shared process namespace has one."""
    for pod in pods(read(file)):
        spec = pod["spec"]
        (container,) = spec["containers"]

        assert (spec["securityContext"]["runAsNonRoot"], spec["shareProcessNamespace"]) == (True, True)
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
