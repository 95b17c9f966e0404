"""The command line's answers to mistakes, and its table of buffers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from asap_ray.cli import main
from asap_ray.models.model import load_model


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "nothing to serve: give --model DIR"),
        (["serve", "--config", "x.yaml", "--dp", "3"], "--dp and --config were both given"),
        (["serve", "--config", "/nowhere.yaml"], "cannot read /nowhere.yaml"),
        (["serve", "--model", "/nowhere"], "/nowhere/config.json does not exist"),
        (["serve", "--model", "{model}", "--dp", "0"], "every degree must be at least 1"),
        (["serve", "--model", "{model}", "--ep", "9"], "moe_devices=9 exceeds num_experts=8"),
        (
            ["serve", "--model", "{model}", "--device", "npu"],
            "device 'npu' cannot be used here: (1) ASCEND_HOME_PATH is not",
        ),
        (["decode"], "nothing to decode: give --model DIR"),
        (["decode", "--config", "x.yaml", "--name", "d"], "--name and --config were both given"),
        (["decode", "--model", "/nowhere"], "/nowhere/config.json does not exist"),
        (["serve", "--model", "{model}", "--api-key-file", "/nowhere"], "no API key at file:/nowhere: No such file"),
        (["replay", "--url", "http://127.0.0.1:9", "--api-key-file", "/nowhere"], "no API key at file:/nowhere"),
        (["timeline", "--api-key-file", "/nowhere"], "no API key at file:/nowhere: No such file"),
        (["replay"], "give either --url or --app"),
        (["replay", "--url", "http://127.0.0.1:9"], "ConnectError"),
        (["replay", "--url", "http://127.0.0.1:9", "--trace", "/nowhere"], "cannot read trace /nowhere"),
        (["replay", "--url", "http://127.0.0.1:9", "--out", "/proc/x"], "cannot make directory /proc/x"),
        (["replay", "--url", "http://127.0.0.1:9", "--rate", "0"], "rate factor=0.0 must be positive"),
        (["replay", "--url", "http://127.0.0.1:9", "--timeline", "/proc/x"], "cannot write /proc/x"),
        (["simulate", "--timeline", "/proc/x"], "cannot write /proc/x"),
        (["timeline", "--last", "0s"], "--last '0s' must be a positive number of seconds"),
        (["timeline", "--last", "soon"], "--last 'soon' must be a positive number of seconds"),
        (["timeline", "-o", "/proc/x"], "cannot write /proc/x"),
        (["timeline", "--url", "http://127.0.0.1:9"], "127.0.0.1:9/timeline: ConnectError"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """What is wrong, with its value; no traceback, nothing started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asap-ray", *(word.format(model=tiny_model) for word in arguments)])

    with pytest.raises(SystemExit) as exit:
        main()

    lines = capsys.readouterr().err.splitlines()
    assert (exit.value.code, len(lines), lines[0].startswith("asap-ray: "), message in lines[0]) == (2, 1, True, True)


def test_layout_prints_the_papers_table_beside_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the paper's degrees: 14 GB of tokens on its MoE device, an eighth of that on ours (K=8 copies less)."""
    monkeypatch.setattr(sys, "argv", ["asap-ray", "layout"])

    with pytest.raises(SystemExit):
        main()

    printed = capsys.readouterr().out
    assert ("15,032,385,536" in printed, "1,879,048,192" in printed) == (True, True)


def test_make_model_does_not_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing directory may hold somebody's weights."""
    monkeypatch.setattr(sys, "argv", ["asap-ray", "make-model", str(tmp_path)])

    with pytest.raises(SystemExit):
        main()

    assert f"{tmp_path} exists" in capsys.readouterr().err.replace("\n", "")


def test_make_model_makes_any_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that opens, of the sizes that were asked for."""
    sizes = {"hidden": 64, "layers": 2, "heads": 4, "head-dim": 16, "experts": 8, "moe-intermediate": 32, "vocab": 300}
    options = [f"--{name}={value}" for name, value in sizes.items()]
    directory = tmp_path / "model"
    monkeypatch.setattr(sys, "argv", ["asap-ray", "make-model", str(directory), "--family=deepseek_v32", *options])

    with pytest.raises(SystemExit) as exit:
        main()

    config = load_model(directory).config
    assert (exit.value.code, capsys.readouterr().out[-3:]) == (0, "MB\n")
    assert (config.hidden, config.num_layers, config.moe_layers) == (64, 2, (1,))
