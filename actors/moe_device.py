"""A MoE device: its experts of all layers behind three streams (3.4)."""

from __future__ import annotations

import threading
from typing import Final

from asap_ray.actors.device_metrics import DeviceMetrics
from asap_ray.actors.exporters import RayExporter
from asap_ray.actors.lease import Lease, end_instance
from asap_ray.actors.loop import Loop
from asap_ray.actors.placement import settled
from asap_ray.config import ServeConfig, fingerprint_of
from asap_ray.messages import Registrations, decode, encode
from asap_ray.totals import Pace, Spent

_STOP_S: Final = 5.0


class MoEDevice:
    """The actor of MoE device e; Ray sees control calls only."""

    def __init__(self, config: bytes, moe_device: int) -> None:
        # Here, as a frontend that attaches loads this class, and is to be quick: torch takes two seconds.
        from asap_ray.backends.host import HostMoE, instance_of  # noqa: PLC0415
        from asap_ray.backends.ports import open_ports  # noqa: PLC0415
        from asap_ray.models.model import load_model  # noqa: PLC0415

        served = decode(ServeConfig, config)
        model = load_model(served.model)
        self._fingerprint = fingerprint_of(served, model.fingerprint)
        self._moe = HostMoE(served, model, moe_device, open_ports(settled(served)))
        self._metrics = DeviceMetrics(
            RayExporter(app=served.name, moe_device=str(moe_device)),
            self._moe.totals,
            instance_of(served, model).experts_of(moe_device),
        )
        self._loop: Loop | None = None
        self._joining = threading.Lock()
        self._lease = Lease(served.start_timeout_s + served.orphan_timeout_s, served.orphan_timeout_s, end_instance)

    def register(self) -> bytes:
        """Where peers find this device's buffer."""
        return encode(Registrations((self._moe.registration(self._fingerprint),)))

    def serve(self, ranks: bytes) -> None:
        """Open the buffers of all attention ranks and start the streams; once, whoever asks again."""
        with self._joining:
            if self._loop is None:
                self._moe.connect(decode(Registrations, ranks).devices)
                self._loop = Loop(self._moe.serve)

    def replace_group(self, ranks: bytes) -> None:
        """A group died: drop what it left, and serve its successor."""
        if self._loop:  # else it will be told with `serve`
            self._moe.replace_group(decode(Registrations, ranks).devices)

    def state(self, frontend: str) -> str:
        """`joining`, `serving`, `stopped`, or what failed; renews the frontend's lease, and reports metrics."""
        self._lease.renew(frontend)
        self._metrics.report()
        return self._loop.state if self._loop else "joining"

    def ended(self) -> str:
        """Wait until the streams end; what ended them."""
        assert self._loop is not None, "it has yet to serve"
        self._loop.join()
        return self._loop.state

    def duty(self) -> bytes:
        """Totals of the compute stream."""
        return encode(self._moe.duty)

    def pace(self) -> bytes:
        """What layers took it (`Pace`): of one size, as those of all batches come to all MoE devices alike."""
        duty = self._moe.duty
        return encode(Pace({"": Spent(duty.compute_s, duty.num_items)}))

    def timeline(self, last_s: float) -> bytes:
        """The spans of its streams in the last seconds (`Timeline`)."""
        return encode(self._moe.timeline(last_s))

    def totals(self) -> bytes:
        """What it has counted since its start (`DeviceTotals`)."""
        return encode(self._moe.totals())

    def stop(self, frontend: str) -> bool:
        """End the streams, unless another frontend uses them; whether they ended."""
        if not self._lease.release(frontend):
            return False
        self._moe.runtime.close()
        if self._loop:
            self._loop.join(_STOP_S)
        return True
