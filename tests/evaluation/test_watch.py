"""What a replay takes from two looks at a server."""

from __future__ import annotations

from asap_ray.dashboards.looks import Look, Span
from asap_ray.evaluation.watch import Load, Utilisation, Watch
from asap_ray.telemetry import frontend
from asap_ray.telemetry.metric import Metric


def look(at_s: float, values: dict[Metric, float], compute_s: float | None = None) -> Look:
    """One that has these totals, and perhaps a device."""
    samples = {(metric.exported, ""): value for metric, value in values.items()}
    return Look(at_s, samples=samples, duty={} if compute_s is None else {"moe:0": {"compute_s": compute_s}})


def watched(before: Look, now: Look) -> Watch:
    """The samples of one second look, 2 s after the start."""
    watch = Watch()
    watch.saw(Span(before, now), 2.0)
    return watch


def test_load_is_what_there_was_and_the_growth_a_second() -> None:
    """Three requests, 1,000 tokens in 2 s, of which a quarter were found."""
    before = look(10.0, {frontend.RUNNING: 0, frontend.PROMPT_TOKENS: 0})
    after = look(
        12.0,
        {
            frontend.RUNNING: 1,
            frontend.WAITING: 2,
            frontend.PROMPT_TOKENS: 1000,
            frontend.KV_CACHE_USAGE: 0.5,
            frontend.PREFIX_QUERIES: 1000,
            frontend.PREFIX_HITS: 250,
        },
    )

    assert watched(before, after).load == [
        Load(t_s=2.0, running=1, waiting=2, prompt_tokens_per_s=500, kv_cache_usage=0.5, prefix_hits=0.25)
    ]


def test_a_server_without_a_cache_has_no_shares_of_one() -> None:
    """None, and not 0."""
    idle = {frontend.RUNNING: 0.0}
    (load,) = watched(look(0.0, idle), look(1.0, idle)).load
    assert (load.kv_cache_usage, load.prefix_hits) == (None, None)


def test_a_server_that_says_nothing_gives_no_samples() -> None:
    """Nor does the second look after it came back."""
    watch = watched(Look(1.0), look(2.0, {frontend.RUNNING: 1}, compute_s=1.0))
    assert (watch.load, watch.utilisation) == ([], [])


def test_a_device_is_busy_for_a_share_of_the_time_between() -> None:
    """It computed 0.5 s of 2 s."""
    assert watched(look(1.0, {}, 1.0), look(3.0, {}, 1.5)).utilisation == [
        Utilisation(t_s=2.0, device="moe:0", busy=0.25)
    ]


def test_a_device_that_began_anew_gives_no_sample() -> None:
    """Its total went back."""
    assert watched(look(1.0, {}, 9.0), look(3.0, {}, 0.5)).utilisation == []


def test_looks_at_two_replicas_are_not_compared() -> None:
    """Their counters have nothing to do with each other."""
    samples = {(frontend.RUNNING.exported, ""): 1.0}
    first, second = (Look(at_s, samples=samples, engine=engine) for at_s, engine in ((1.0, "0"), (2.0, "1")))
    assert watched(first, second).load == []
