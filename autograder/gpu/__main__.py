"""``python -m autograder.gpu``: run the kernels compiled, measure them, write one JSON file."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autograder import chapters

FOLDER = chapters.ROOT / "book" / "data" / "gpu"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and say where the result is.

    Returns:
        0; 1 where a case does not agree with float64; 2 where nothing can be measured.
    """
    parser = argparse.ArgumentParser(prog="python -m autograder.gpu", description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="the file to write; by default one in book/data/gpu"
    )
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="begin nothing new after so long (480)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="try this script on a CPU, at tiny sizes and with Triton's interpreter",
    )
    arguments = parser.parse_args(argv)
    if arguments.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    import torch  # noqa: PLC0415 — after the choice above

    if not arguments.dry_run and not torch.cuda.is_available():
        print(
            "PyTorch sees no GPU here: run this on a machine with one, or in Colab with a GPU. "
            "(--dry-run tries the script itself on a CPU.)"
        )
        return 2
    try:
        import triton  # noqa: F401, PLC0415
    except ImportError:
        print("Triton is not installed: pip install triton (there is none for Windows and macOS)")
        return 2
    found = measure("cpu" if arguments.dry_run else "cuda", arguments.seconds)
    path = arguments.out
    if path is None and arguments.dry_run:
        print("dry run: nothing written (--out FILE writes it)")
    else:
        path = path or FOLDER / f"{slug(found['device']['name'])}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"written: {path}")
    for goal in found["goals"]:
        print(f"{'met    ' if goal['met'] else 'NOT MET'}  {goal['asks']}: {goal['seen']}")
    return 0 if all(check["passed"] for check in found["checks"]) else 1


def measure(device: str, seconds: float) -> dict[str, Any]:
    """Everything, in the order of its importance: agreement, blocks, memory, times.

    Args:
        device: ``"cuda"``, or ``"cpu"`` for a dry run.
        seconds: nothing new is begun after so long.
    """
    from autograder.gpu import agreement, goals, measure  # noqa: PLC0415 — import torch and Triton
    from autograder.gpu.sizes import FULL, TINY  # noqa: PLC0415

    sizes = TINY if device == "cpu" else FULL
    start = time.monotonic()

    def within(share: float) -> bool:
        return time.monotonic() - start < share * seconds

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {what}", flush=True)

    found: dict[str, Any] = {
        "device": describe(device),
        "versions": versions(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }
    say(f"{found['device']['name']}: the chapter's own checks")
    found["checks"] = list(agreement.graded(device))
    say("comparing with float64")
    found["checks"] += agreement.compare(sizes, device)
    for check in found["checks"]:
        if not check["passed"]:
            say(f"NOT PASSED  {check['name']}: {check.get('message') or check.get('errors')}")
    say("choosing blocks")
    chosen = measure.tune(sizes, device, lambda: within(0.5))
    found["blocks"] = [
        {"kind": kind, "d": d, "causal": causal, **blocks}
        for (kind, d, causal), blocks in chosen.items()
    ]
    say("memory")
    found["memory"] = list(measure.memory(sizes, device, chosen))
    found["times"] = []
    for row in measure.times(sizes, device, chosen, lambda: within(1.0)):
        if row["implementation"] == "ours" and row["kind"] == "forward":
            say(f"times: {row['dtype']}, d = {row['d']}, causal {row['causal']}, T = {row['T']}")
        found["times"].append(row)
    found["complete"] = within(1.0)
    found["goals"] = goals.judge(found)
    return found


def describe(device: str) -> dict[str, Any]:
    """What was measured."""
    import torch  # noqa: PLC0415 — after the choice in main

    if device == "cpu":
        return {"name": f"{platform.machine()} CPU, Triton's interpreter"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
    }


def versions() -> dict[str, str | None]:
    """Versions of what the figures depend on."""
    import torch  # noqa: PLC0415 — after the choice in main

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "cuda": torch.version.cuda,
    }


def slug(name: str) -> str:
    """A device's name as a file's: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
