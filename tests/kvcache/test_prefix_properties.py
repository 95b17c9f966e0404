"""What holds for every order of events: pool and prefix cache against a slow model, and against what blocks contain."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache, Reservation

BLOCK = 4


@dataclass
class Live:
    """A request that holds blocks."""

    keys: list[str]
    reservation: Reservation
    num_known: int = 0  # of its keys, those that were found or published


@dataclass
class World:
    """The cache under test; what is physically in each block; and who used which prefix when."""

    num_blocks: int
    clock: int = 0
    live: dict[str, Live] = field(default_factory=dict)
    content: dict[int, str] = field(default_factory=dict)
    used_at: dict[str, int] = field(default_factory=dict)  # of every known key, when it was last let go of

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks, BLOCK)
        self.cache = PrefixCache(self.pool)

    def held(self) -> set[str]:
        """Known keys that live requests hold."""
        return {key for each in self.live.values() for key in each.keys[: each.num_known]}

    def idle(self) -> list[str]:
        """Known keys that nobody holds, in the order in which they make room: long unused first, then deep first."""
        return sorted(self.used_at.keys() - self.held(), key=lambda key: (self.used_at[key], -len(key)))

    def num_taken(self) -> int:
        """Blocks of tables, and those that are held in the place of an own one."""
        own = {block for each in self.live.values() for block in each.reservation.table}
        return len(own | {self.cache._blocks[key.encode()] for key in self.held()})

    def reserve(self, name: str, prompt: str, num_extra: int) -> None:
        """Try a new request of as many full blocks as `prompt` has letters, and `num_extra` tokens more."""
        if name in self.live:
            return
        keys = [prompt[: stop + 1] for stop in range(len(prompt))]
        prompt_tokens = max(1, BLOCK * len(prompt) + min(num_extra, BLOCK - 1))
        kv_tokens = prompt_tokens + num_extra
        num_hit = 0
        while num_hit < (prompt_tokens - 1) // BLOCK and num_hit < len(keys) and keys[num_hit] in self.used_at:
            num_hit += 1
        num_fresh = -(-kv_tokens // BLOCK) - num_hit
        spare = [key for key in self.idle() if key not in keys[:num_hit]]
        num_free = self.num_blocks - self.num_taken() - len(self.idle())
        reservation = self.cache.reserve(name, [key.encode() for key in keys], prompt_tokens, kv_tokens)
        assert (reservation is None) == (num_fresh > num_free + len(spare))
        if reservation is None:
            return
        for key in spare[: max(0, num_fresh - num_free)]:
            del self.used_at[key]
        assert reservation.cached_tokens == BLOCK * num_hit
        assert [self.content.get(block) for block in reservation.table[:num_hit]] == keys[:num_hit]
        self.check_fresh(reservation.table[num_hit:])
        self.live[name] = Live(keys, reservation, num_hit)

    def check_fresh(self, blocks: tuple[int, ...]) -> None:
        """Nobody else has them, in a table or in the cache; they will be written."""
        taken = {block for each in self.live.values() for block in each.reservation.table}
        assert len({*blocks}) == len(blocks)
        assert not taken & {*blocks}
        assert not self.cache._keys.keys() & {*blocks}
        for block in blocks:
            self.content.pop(block, None)

    def publish(self, name: str, num_tokens: int) -> None:
        """A request has computed so many of its tokens."""
        if not (each := self.live.get(name)):
            return
        num_known = min(num_tokens // BLOCK, len(each.keys))
        for index in range(each.num_known, num_known):
            self.content[each.reservation.table[index]] = each.keys[index]
            self.used_at.setdefault(each.keys[index], -1)
        each.num_known = max(each.num_known, num_known)
        self.cache.publish(name, num_tokens)

    def release(self, name: str) -> None:
        """A request ends."""
        if not (each := self.live.pop(name, None)):
            return
        self.clock += 1
        self.used_at |= dict.fromkeys(each.keys[: each.num_known], self.clock)
        self.cache.release(name)

    def check(self) -> None:
        """Every block is in one state, and chains have no gaps."""
        assert self.cache.num_held == self.num_taken()
        assert self.cache.num_available - self.pool.num_free == len(self.idle())
        assert all(key[:-1] in self.used_at for key in self.used_at if len(key) > 1)


names = st.sampled_from("1234")
prompts = st.text("ab", max_size=5)
events = st.one_of(
    st.tuples(st.just("reserve"), names, prompts, st.integers(0, 9)),
    st.tuples(st.just("publish"), names, st.integers(0, 24)),
    st.tuples(st.just("release"), names),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(num_blocks=st.integers(1, 12), history=st.lists(events, max_size=60))
def test_the_cache_is_its_slow_model(num_blocks: int, history: list[tuple[str, ...]]) -> None:
    """Same hits, same refusals, same evictions; hits contain what they should; nothing is lost at the end."""
    world = World(num_blocks)
    for kind, *arguments in history:
        getattr(world, kind)(*arguments)
        world.check()
    for name in list(world.live):
        world.release(name)

    assert world.cache.num_available == num_blocks
    assert world.cache.reserve("all", [], BLOCK * num_blocks, BLOCK * num_blocks) is not None
    assert world.pool.num_free == 0
