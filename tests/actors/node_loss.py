"""Serve on a Ray of a head and two nodes that each could hold the instance; kill the one that does.

`python node_loss.py DIRECTORY` prints one line of JSON: answers before and after, and who was missing meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array

import ray
from ray.cluster_utils import Cluster

from asap_ray.actors.placement import NAMESPACE, group_names
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.served_model import served_model
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Request
from asap_ray.config import ServeConfig
from asap_ray.spec import ParallelSpec, PrefillSpec

PROMPTS = [[(7 * n + k) % 512 for k in range(1 + n)] for n in range(8)]
OBJECT_STORE_BYTES = 80 << 20


class Serving:
    """One instance behind a service, watched as a frontend does."""

    def __init__(self, config: ServeConfig) -> None:
        self.instance = PrefillInstance(config, served_model(config))
        self.service = PrefillService(config, served_model(config), self.instance)
        self._num_asked = 0

    async def watch(self) -> None:
        """Bring back who is lost."""
        async for change in self.instance.watch():
            if change.lost:
                self.service.lose(change.group, change.lost)
            else:
                self.service.restore(change.group)

    async def answers(self) -> list[int]:
        """First tokens of all prompts."""
        return await asyncio.gather(*map(self._ask, PROMPTS))

    async def _ask(self, ids: list[int]) -> int:
        self._num_asked += 1
        prompt = Request(
            request_id=f"r{self._num_asked}", num_tokens=len(ids), arrival_s=0.0, token_ids=array("i", ids).tobytes()
        )
        (event,) = [event async for event in self.service.generate([prompt])]
        return event.token.token_id


async def lose_the_node(cluster: Cluster, config: ServeConfig) -> dict[str, object]:
    """Prompts that come once it is gone wait for the devices that Ray starts on the other node."""
    serving = Serving(config)
    await serving.instance.start()
    watching = asyncio.create_task(serving.watch())
    before = await serving.answers()
    group = ray.get_actor(group_names(config)[0], namespace=NAMESPACE)
    home = await group.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    (node,) = [node for node in cluster.worker_nodes if node.node_id == home]
    await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
    while not serving.instance.missing():
        await asyncio.sleep(0.01)
    missing = serving.instance.missing()
    after = await serving.answers()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await serving.service.close()
    await serving.instance.stop()
    return {"before": before, "after": after, "missing": missing}


def main(directory: str) -> None:
    """End the cluster, whatever happens."""
    head = {"num_cpus": 2, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    config = ServeConfig(
        model=directory,
        name="moved",
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=1),
        prefill=PrefillSpec(max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=20.0),
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2, resources={"NPU": 2}, object_store_memory=OBJECT_STORE_BYTES)
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
        sys.stdout.write(json.dumps(asyncio.run(lose_the_node(cluster, config))) + "\n")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
