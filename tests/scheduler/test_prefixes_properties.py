"""What holds for every arrival pattern when prompts share prefixes: what a hit reads is what it needs."""

from __future__ import annotations

import array
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.batch import Request, Sampling
from asap_ray.kvcache.block_keys import block_keys, root_key
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.policies import POLICIES, policy_of
from asap_ray.scheduler.prefixes import Prefixes
from asap_ray.scheduler.shares import tokens
from asap_ray.spec import PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.005)
BLOCK, NUM_BLOCKS = 4, 24
ROOT = root_key("model")
LONGEST = BLOCK * NUM_BLOCKS - 4  # with an answer of 5


@dataclass(frozen=True)
class Prompt:
    """Tokens of one of a few families, so that many share a prefix."""

    gap_s: float
    family: int
    shared: int  # tokens of the family, then its own
    own: int
    answer: int
    leaves: bool  # its client does, as soon as some of it runs


prompts = st.builds(
    Prompt,
    gap_s=st.sampled_from([0.0, 0.001, 0.01, 0.1]),
    family=st.integers(0, 2),
    shared=st.integers(0, 40),
    own=st.integers(1, 24),
    answer=st.sampled_from([1, 1, 2, 5]),
    leaves=st.booleans(),
)


@dataclass
class Pages:
    """What is in each block of a group: the key of what was computed there, by whom it is written now."""

    content: dict[int, bytes] = field(default_factory=dict)
    writer: dict[int, str] = field(default_factory=dict)


class World:
    """Groups that run what the scheduler says, and look at every table."""

    def __init__(self, name: str, num_groups: int) -> None:
        self.prefixes = Prefixes(lambda: PrefixCache(BlockPool(NUM_BLOCKS, BLOCK)), num_groups)
        self.policy = DualBatchScheduler(PREFILL, num_groups, 1000, 10**6, policy_of(name, PREFILL, tokens))
        self.policy.open_caches(self.prefixes)
        self.pages = [Pages() for _ in range(num_groups)]
        self.keys: dict[str, tuple[bytes, ...]] = {}
        self.finished: list[str] = []
        self.ends: list[tuple[float, int, Assignment]] = []
        self.num_started = 0

    def submit(self, number: int, prompt: Prompt, now: float) -> None:
        """A prompt comes."""
        ids = [1000 * prompt.family + n for n in range(prompt.shared)] + [10**6 + 1000 * number] * prompt.own
        packed = array.array("i", ids).tobytes()
        request = Request(
            request_id=str(number),
            num_tokens=len(ids),
            arrival_s=now,
            token_ids=packed,
            sampling=Sampling(max_tokens=prompt.answer),
        )
        self.keys[request.request_id] = block_keys(packed, BLOCK, ROOT)
        self.policy.submit(request, now, self.keys[request.request_id])

    def start(self, assignment: Assignment, now: float, token_s: float) -> None:
        """A batch begins: its prefixes are there, and nobody else writes its blocks."""
        pages = self.pages[assignment.group]
        for piece in assignment.batch.requests:
            found = piece.cached_tokens // BLOCK
            assert [pages.content.get(block) for block in piece.table[:found]] == list(
                self.keys[piece.request_id][:found]
            )
            for block in piece.table[found:]:
                assert pages.writer.get(block, piece.request_id) == piece.request_id
                pages.writer[block] = piece.request_id
        end_s = now + token_s * assignment.batch.num_tokens
        if any(piece.past_tokens for piece in assignment.batch.requests):  # the piece before is a layer ahead
            end_s = max([end_s, *(each[0] for each in self.ends if each[2].group == assignment.group)])
        self.ends.append((end_s, self.num_started, assignment))
        self.num_started += 1

    def end(self, ended: tuple[float, int, Assignment]) -> None:
        """A batch is done."""
        now, _, assignment = ended
        self.ends.remove(ended)
        pages = self.pages[assignment.group]
        for piece in assignment.batch.requests:
            keys, stop = self.keys[piece.request_id], (piece.past_tokens + piece.num_tokens) // BLOCK
            pages.content |= dict(list(zip(piece.table, keys, strict=False))[piece.past_tokens // BLOCK : stop])
            assert [pages.content[block] for block in piece.table[:stop]] == list(keys[:stop])
            if not piece.future_tokens:
                self.finished.append(piece.request_id)
        running = {piece.request_id for _, _, other in self.ends for piece in other.batch.requests}
        pages.writer = {block: name for block, name in pages.writer.items() if name in running}
        self.policy.computed(assignment.batch, now)
        self.policy.done(assignment.group, assignment.batch, now)

    def lose(self, assignment: Assignment) -> None:
        """A group is lost and back at once, without its pages."""
        self.policy.mark_down(assignment.group)
        for each in [each for each in self.ends if each[2].group == assignment.group]:
            self.ends.remove(each)
            self.policy.requeue(each[2].batch)
        self.pages[assignment.group] = Pages()
        self.policy.mark_up(assignment.group)


def drive(name: str, num_groups: int, arrivals: list[Prompt], lost: frozenset[int] = frozenset()) -> World:
    """Run to the end."""
    world, now, due = World(name, num_groups), 0.0, 0.0
    waiting = []
    for number, prompt in enumerate(arrivals):
        due += prompt.gap_s
        waiting.append((due, number, prompt))
    while waiting or world.ends or world.policy.num_queued:
        wake_at = world.policy.wake_at(now)
        times = [waiting[0][0]] if waiting else []
        times += [wake_at] if wake_at is not None else []
        times += [end_s for end_s, _, _ in world.ends]
        assert times, f"{world.policy.num_queued} prompts wait for nothing"
        now = min(times)
        while waiting and waiting[0][0] <= now:
            world.submit(waiting[0][1], waiting.pop(0)[2], now)
        for ended in [each for each in world.ends if each[0] <= now]:
            if ended in world.ends:
                world.lose(ended[2]) if ended[1] in lost else world.end(ended)
        for assignment in world.policy.assign(now):
            world.start(assignment, now, 1e-3)
            for piece in assignment.batch.requests:
                if arrivals[int(piece.request_id)].leaves and world.policy.cancel(piece.request_id):
                    world.finished.append(piece.request_id)
        assert world.policy.assign(now) == []
    return world


@pytest.mark.parametrize("name", POLICIES)
@given(st.integers(1, 3), st.lists(prompts, max_size=30))
def test_every_prompt_ends_once_and_lets_go(name: str, num_groups: int, arrivals: list[Prompt]) -> None:
    """And each hit found what it needed (`World.start`)."""
    world = drive(name, num_groups, arrivals)

    assert sorted(map(int, world.finished)) == list(range(len(arrivals)))
    assert [cache.num_held for cache in world.prefixes.caches] == [0] * num_groups


@pytest.mark.parametrize("name", POLICIES)
@given(st.integers(1, 3), st.lists(prompts, max_size=30), st.frozensets(st.integers(0, 10)))
def test_so_it_is_when_groups_are_lost(
    name: str, num_groups: int, arrivals: list[Prompt], lost: frozenset[int]
) -> None:
    """What was lost starts over, and finds nothing that is gone."""
    world = drive(name, num_groups, arrivals, lost)

    assert set(map(int, world.finished)) == set(range(len(arrivals)))
    assert [cache.num_held for cache in world.prefixes.caches] == [0] * num_groups


@pytest.mark.parametrize("name", POLICIES)
def test_prefixes_save_what_they_can(name: str) -> None:
    """Twenty prompts of 44 tokens, one after another, of which 40 are the same: 19 hits of 40."""
    arrivals = [Prompt(0.1, 0, 40, 4, 1, leaves=False)] * 20

    assert drive(name, 1, arrivals).prefixes.caches[0].counts.hit_tokens == 19 * 40
