"""Runs spin on the models; `make verify` runs every case and prints the table of docs/verify.md."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.verify.cases import BROKEN, HOLDING, HOLDS, Case

MODELS: Final = Path(__file__).parent
MEMORY_MB: Final = 12_000
MAX_DEPTH: Final = 2_000_000
TABLE_BITS: Final = {True: 20, False: 26}
"""Slots of spin's hash table (log2): quick cases do not pay for a large one."""

HEAD: Final = "| case | defines | ends | states | transitions | depth | MB | s |\n|---|---|---|---|---|---|---|---|\n"


def missing() -> str:
    """What this machine lacks, and how to get it; empty if nothing."""
    tools = {"spin": "spin (Debian: apt-get install spin)", "cc": "a C compiler (Debian: apt-get install gcc)"}
    lacking = [text for tool, text in tools.items() if shutil.which(tool) is None]
    return f"needs {' and '.join(lacking)}" if lacking else ""


@dataclass(frozen=True)
class Outcome:
    """How a search ended, and what it took."""

    finds: str  # the first error, HOLDS if there is none, "incomplete" if it was cut short
    states: int
    transitions: int
    depth: int
    megabytes: float
    seconds: float


def search(case: Case) -> Outcome:
    """Generate, compile and run the verifier of a case; exhaustive, or up to the first error."""
    defines = [f"-D{name}={value}" for name, value in case.defines.items()]
    with tempfile.TemporaryDirectory(prefix="asap-spin-") as folder:
        _call(folder, "spin", *defines, "-a", str(MODELS / case.model))
        options = ["-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}", "-DVECTORSZ=4096", "-w"]
        options += ["-DT_RAND", "-DP_RAND"] if case.shuffled else []
        _call(folder, "cc", "-O0" if case.quick else "-O3", *options, "-o", "pan", "pan.c")
        report = _call(folder, "./pan", f"-m{MAX_DEPTH}", f"-w{TABLE_BITS[case.quick]}", "-n")
    return outcome(report)


def _call(folder: str, *command: str) -> str:
    """Standard output of a tool; what it says when it fails."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stdout}{result.stderr}")
    return result.stdout


def outcome(report: str) -> Outcome:
    """What pan's report says."""

    def number(pattern: str) -> float:
        found = re.search(pattern, report)
        return float(found.group(1)) if found else 0

    error = re.search(r"pan:\d+: (invalid end state|assertion violated|.*)", report)
    finished = "errors: 0" in report and not re.search(r"not completed|too small|out of memory", report)
    return Outcome(
        finds=error.group(1) if error else HOLDS if finished else "incomplete",
        states=int(number(r"([\d.e+]+) states, stored")),
        transitions=int(number(r"([\d.e+]+) transitions")),
        depth=int(number(r"depth reached (\d+)")),
        megabytes=number(r"([\d.]+)\s+total actual memory usage"),
        seconds=number(r"elapsed time ([\d.]+) seconds"),
    )


def line(case: Case, found: Outcome) -> str:
    """A row of the table."""
    defines = " ".join(f"{name}={value}" for name, value in case.defines.items())
    cells = (
        case.name,
        defines,
        found.finds or "holds",
        f"{found.states:,}",
        f"{found.transitions:,}",
        f"{found.depth:,}",
        f"{found.megabytes:,.0f}",
        f"{found.seconds:.1f}",
    )
    return "| " + " | ".join(cells) + " |\n"


def main() -> int:
    """Run the cases; 1 if one ends otherwise than it must, 2 if a tool is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the cases the tests run")
    parser.add_argument("names", nargs="*", help="only these cases")
    arguments = parser.parse_args()
    if lacking := missing():
        sys.stderr.write(f"make verify {lacking}\n")
        return 2
    wrong = []
    sys.stdout.write(HEAD)
    for case in (*HOLDING, *BROKEN):
        if (arguments.quick and not case.quick) or (arguments.names and case.name not in arguments.names):
            continue
        found = search(case)
        sys.stdout.write(line(case, found))
        sys.stdout.flush()
        if found.finds != case.finds:
            wrong.append(f"{case.name}: {found.finds or 'holds'}, expected {case.finds or 'holds'}")
    sys.stderr.write("".join(f"{text}\n" for text in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
