"""An instance under a skewed load while its processes are killed and stopped at random, for as long as you like.

    python benchmarks/soak.py [--quick | --minutes N] [--seed N] [--json FILE]

`asap-ray serve` with D = 2 groups of T = 2 ranks and E = 2 MoE devices of a small random model. Eight clients ask
prompts of skewed lengths and popularity, alone, as streams and in pairs; some leave before their answer, some send what
nobody may serve. Meanwhile an attention rank, a MoE device or the frontend gets SIGKILL or SIGSTOP. Every answer is
compared with the undivided model's. Between strikes the clients pause, and the instance must hold nothing: no slot, no
queued token, no KV block, no lease, no buffer of the dead, no process too many, no more descriptors or memory.

The log says what happens as it does. Ends with 1 if anything happened that must not.

--quick: three strikes, under a minute. Full: --minutes 60.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.census import Auditor, Census
from chaos.load import Load, Tally
from chaos.processes import ROLES, descendants, exists, title_of
from chaos.prompts import make_prompts
from chaos.strikes import KILL, STALL, Strike, Striker, table

from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny
from asap_ray.spec import ParallelSpec

PARALLEL = ParallelSpec(dp_groups=2, tp=2, moe_devices=2)
NUM_CLIENTS = 8
START_S = 600.0  # on a machine that does other work
STOP_S = 90.0
GONE_S = 10.0
POLL_S = 0.1
BEFORE_S = (3.0, 8.0)  # of load, before a strike
AFTER_S = 3.0
QUICK = (("MoE device", KILL), ("attention rank", KILL), ("frontend", STALL))


@dataclass
class Story:
    """All that happened."""

    seed: int
    began_s: float = field(default_factory=time.monotonic)
    strikes: list[Strike] = field(default_factory=list)
    censuses: list[Census] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        """A line of the log."""
        minutes, seconds = divmod(time.monotonic() - self.began_s, 60)
        print(f"{minutes:02.0f}:{seconds:04.1f} {text}", flush=True)

    def violate(self, text: str) -> None:
        """What must never happen."""
        self.violations.append(text)
        self.tell(f"VIOLATION {text}")


@contextmanager
def served(model: Path, story: Story) -> Iterator[tuple[int, str]]:
    """`asap-ray serve` in a process of its own: its id and URL. Everything below it must end with it."""
    log = model.parent / "serve.log"
    command = [
        str(Path(sys.executable).parent / "asap-ray"),
        "serve",
        "--model",
        str(model),
        "--port",
        str(free_port()),
    ]
    for option, degree in (("--dp", PARALLEL.dp_groups), ("--tp", PARALLEL.tp), ("--ep", PARALLEL.moe_devices)):
        command += [option, str(degree)]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process.pid, wait_until_ready(process, log)
        finally:
            below = list(descendants(process.pid))
            stop(process, story)
            if left := outlive(below):
                story.violate(f"outlive the instance by {GONE_S:g} s: {', '.join(map(title_of, left))}")
            for pid in left:
                os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL of its one line."""
    deadline_s = time.monotonic() + START_S
    while "ready: " not in (text := log.read_text()):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the instance did not start: {text}")
        time.sleep(POLL_S)
    return text.partition("ready: ")[2].split()[0]


def outlive(pids: list[int]) -> list[int]:
    """Those that are not gone in time: the raylet ends its children after the command that ended it."""
    deadline_s = time.monotonic() + GONE_S
    while (left := [pid for pid in pids if exists(pid)]) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return left


def stop(process: subprocess.Popen[bytes], story: Story) -> None:
    """SIGTERM, and that it ends well."""
    process.send_signal(signal.SIGTERM)
    try:
        if code := process.wait(STOP_S):
            story.violate(f"asap-ray serve ended with {code}")
    except subprocess.TimeoutExpired:
        story.violate(f"asap-ray serve did not end within {STOP_S:g} s")
        process.kill()


async def round_of(story: Story, load: Load, striker: Striker, auditor: Auditor, given: tuple[str, str] | None) -> None:
    """Load, a strike, load again, and a census in silence."""
    load.resume()
    await asyncio.sleep(random.Random(f"{story.seed} {len(story.censuses)}").uniform(*BEFORE_S))
    role, method = given or striker.draw()
    story.tell(f"{method} of {role}")
    strike = await striker.strike(role, method)
    story.strikes.append(strike)
    story.tell(f"  ready after {strike.away_s:.1f} s")
    await asyncio.sleep(AFTER_S)
    await load.pause()
    await look(story, load.tally, auditor)


async def look(story: Story, tally: Tally, auditor: Auditor) -> None:
    """A census, and what the clients have to say."""
    census = await auditor.take()
    story.censuses.append(census)
    for text in (*census.wrong, *tally.drain()):
        story.violate(text)
    held = ", ".join(f"{role} {mb:.0f} MB {fds} fds" for role in ROLES.values() for _, mb, fds in [census.total(role)])
    story.tell(f"  {dict(tally.outcomes)}")
    story.tell(f"  {census.num_processes} processes; {held}")


async def soak(story: Story, root: int, url: str, model: Path, minutes: float) -> Tally:
    """Rounds until the time is over; at 0 the quick ones."""
    prompts = make_prompts(model, story.seed)
    striker, auditor = Striker(root, url, story.seed), Auditor(root, url, PARALLEL)
    load = Load(url, prompts, striker.is_forgiving, story.seed)
    clients = [asyncio.create_task(load.client()) for _ in range(NUM_CLIENTS)]
    given = iter(QUICK if not minutes else ())
    end_s = time.monotonic() + 60 * minutes
    try:
        while (blow := next(given, None)) or time.monotonic() < end_s:
            await round_of(story, load, striker, auditor, blow)
    except TimeoutError:
        story.violate(f"nobody is served any more: {load.tally.outcomes}")
    finally:
        for text in load.tally.drain():
            story.violate(text)
        for client in clients:
            client.cancel()
        for result in await asyncio.gather(*clients, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                story.violate(f"a client failed: {result!r}")
    for pid, (looks, gained_mb) in sorted(auditor.growth_mb().items()):
        story.tell(f"process {pid}: {gained_mb:+.1f} MB between censuses 2 and {looks}")
    return load.tally


def main() -> int:
    """Tell the story; 1 if it has a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three strikes")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, clients and strikes")
    parser.add_argument("--json", type=Path, help="everything, to this file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    story = Story(options.seed)
    with tempfile.TemporaryDirectory(prefix="asap-soak-") as directory:
        model = Path(directory) / "tiny"
        make_random_checkpoint(model, **tiny())
        with served(model, story) as (root, url):
            story.tell(f"{url} serves {PARALLEL}")
            tally = asyncio.run(soak(story, root, url, model, 0 if options.quick else options.minutes))
    print(table(story.strikes))
    story.tell(f"{len(story.strikes)} strikes, {dict(tally.outcomes)}, {len(story.violations)} violations")
    if options.json:
        found = asdict(story) | {"outcomes": tally.outcomes, "kind": "measured"}
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if story.violations else 0


if __name__ == "__main__":
    sys.exit(main())
