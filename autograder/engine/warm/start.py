"""Entry of a fresh process: ``python start.py CONFIGURATION``, a JSON object.

The project's packages are stood in for by empty ones that can find the sandbox's side only, so that
no check, answer or reference is ever loaded here: what this process holds, every sandbox can read.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any


def stand_ins() -> None:
    """Put packages without code where the project's would be loaded."""
    engine = Path(__file__).resolve().parent.parent
    project = engine.parent
    for name, folder in (
        ("autograder", project),
        ("autograder.engine", engine),
        ("autograder.guest", project / "guest"),
    ):
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
        parent, _, own_name = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own_name, module)


def seal() -> None:
    """Take the way to the project's files back, once what a sandbox needs is loaded."""
    package = sys.modules["autograder"]
    for name in [name for name in sys.modules if name.startswith("autograder.engine")]:
        del sys.modules[name]
    package.__dict__.pop("engine", None)
    package.__path__ = sys.modules["autograder.guest"].__path__ = []
    # A notebook's first cell imports `check`; at grading nobody listens to it.
    package.__dict__["__getattr__"] = _nothing


def _nothing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None


def main() -> None:
    """Become what the configuration says."""
    configuration = json.loads(sys.argv[1])
    stand_ins()
    module = "bare" if configuration["tier"] == "none" else "zygote"
    importlib.import_module(f"autograder.engine.warm.{module}").run(configuration, seal)


if __name__ == "__main__":
    main()
