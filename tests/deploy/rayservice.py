"""What a RayService may hold: the fields of KubeRay 1.7's `ray.io/v1` that our manifests use, and no others.

Source: KubeRay's API reference of release 1.7.0. Pod templates are left to `kubernetes_validate`, Serve's configuration
to Ray itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

PodTemplate = dict[str, Any]
"""Of the core API."""


class Strict(BaseModel):
    """An unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid")


class ObjectMeta(Strict):
    """`name` as a DNS label; KubeRay adds suffixes of up to 16 characters to it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=47)]
    labels: dict[str, str] = {}


class AuthOptions(Strict):
    """Ray's token authentication, of KubeRay 1.5.1 and later."""

    mode: Literal["token", "disabled"]
    secretName: StrictStr | None = None


class HeadGroupSpec(Strict):
    """`rayStartParams` are options of `ray start`, as text."""

    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    rayStartParams: dict[str, StrictStr]
    template: PodTemplate


class WorkerGroupSpec(Strict):
    """Pods of one kind."""

    groupName: StrictStr
    replicas: StrictInt
    minReplicas: StrictInt
    maxReplicas: StrictInt
    numOfHosts: StrictInt = 1
    rayStartParams: dict[str, StrictStr]
    template: PodTemplate


class RayClusterSpec(Strict):
    """`authOptions` is required here, though not by KubeRay: no cluster of ours leaves it to chance."""

    rayVersion: StrictStr
    authOptions: AuthOptions
    headGroupSpec: HeadGroupSpec
    workerGroupSpecs: list[WorkerGroupSpec] = []

    @property
    def groups(self) -> list[HeadGroupSpec | WorkerGroupSpec]:
        """The head and the workers."""
        return [self.headGroupSpec, *self.workerGroupSpecs]


class UpgradeStrategy(Strict):
    """What becomes of a cluster whose specification changes."""

    type: Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"]


class RayServiceSpec(Strict):
    """`serveConfigV2` is YAML within YAML."""

    upgradeStrategy: UpgradeStrategy
    excludeHeadPodFromServeSvc: bool = False
    serveConfigV2: StrictStr
    rayClusterConfig: RayClusterSpec


class RayService(Strict):
    """One manifest."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayService"]
    metadata: ObjectMeta
    spec: RayServiceSpec
