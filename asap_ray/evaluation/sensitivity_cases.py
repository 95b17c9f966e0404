"""The cases beside the paper's: prompts, devices, links, models and experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from asap_ray.evaluation.points import BUNDLED, Case, paper_case
from asap_ray.evaluation.section import Effort

RECORDINGS: Final = {
    "mooncake_conversation.jsonl.gz": 3.0,
    "mooncake_synthetic.jsonl.gz": 0.0,
    "azure2023_code.jsonl.gz": 0.0,
    "azure2023_conv.jsonl.gz": 0.0,
    "servegen_deepseek-r1_1h.jsonl.gz": 0.0,
}
"""Public traces by file name, and the seconds their clumped times are spread over."""

BUNDLED_CLUMPS_S: Final = 3.0


def trace_cases(effort: Effort) -> list[Case]:
    """Length presets, the bundled trace, and those that lie in `effort.traces`."""
    base = paper_case()
    presets = [replace(base, trace=name) for name in ("A", "B", "C", "M")]
    recorded = [replace(base, trace=BUNDLED, dequantise_s=BUNDLED_CLUMPS_S)]
    recorded += [
        replace(base, trace=str(effort.traces / name), dequantise_s=clumps_s)
        for name, clumps_s in RECORDINGS.items()
        if (effort.traces / name).exists()
    ]
    return [presets[0], *presets[1:2], *recorded[:1]] if effort.is_quick else [*presets, *recorded]


def device_cases(effort: Effort) -> list[Case]:
    """Other splits of 32 devices."""
    splits = [(4, 4, 16), (5, 4, 12), (3, 4, 20), (2, 8, 16)]
    return [replace(paper_case(), dp=dp, tp=tp, ep=ep) for dp, tp, ep in splits[: 2 if effort.is_quick else None]]


def link_cases(effort: Effort) -> list[Case]:
    """Other interconnects."""
    links = ("supernode", "rdma", "ethernet")
    return [replace(paper_case(), interconnect=link) for link in links[: 2 if effort.is_quick else None]]


def model_cases(effort: Effort) -> list[Case]:
    """Other models on 32 devices; Mixtral has 8 experts, so 8 devices for them."""
    base = paper_case()
    cases = [base, *(replace(base, model=name) for name in ("qwen3-235b-a22b", "kimi-k2"))]
    cases.append(replace(base, model="mixtral-8x22b", dp=6, ep=8))
    return cases[: 2 if effort.is_quick else None]


def skew_cases(effort: Effort) -> list[Case]:
    """Experts that are not chosen evenly."""
    skews = ("uniform", "zipf:0.5", "zipf:0.75")
    return [replace(paper_case(), skew=skew) for skew in skews[: 2 if effort.is_quick else None]]


def all_cases(effort: Effort) -> list[Case]:
    """Each once, in the order of the sections."""
    lists = (cases(effort) for cases in (trace_cases, device_cases, link_cases, model_cases, skew_cases))
    return list(dict.fromkeys(case for cases in lists for case in cases))
