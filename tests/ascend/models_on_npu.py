"""Whole models with attention on a die: `python -m tests.ascend.models_on_npu FOLDER [CASE...]`, JSON to ASAP_FOUND."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch_npu

from tests.ascend.models_on_die import CASES, Case, error_of


def found(case: Case, folder: Path) -> dict[str, Any]:
    """As `error_of`; or why there is nothing to compare."""
    try:
        return error_of(case, "npu:0", folder)
    except RuntimeError as error:
        return {"failed": str(error)}


if __name__ == "__main__":
    torch_npu.npu.set_device(0)
    names = sys.argv[2:]
    cases = [case for case in CASES if not names or str(case) in names]
    Path(os.environ["ASAP_FOUND"]).write_text(json.dumps({str(case): found(case, Path(sys.argv[1])) for case in cases}))
