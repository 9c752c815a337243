"""What ``make gpu`` measured, one file for each GPU; see ``README.md`` in this folder."""

import json
from importlib.resources import files
from typing import Any


def measurements() -> list[dict[str, Any]]:
    """The measurements that are there, in the order of their file names; perhaps none."""
    found = (item for item in files(__name__).iterdir() if item.name.endswith(".json"))
    return [
        json.loads(item.read_text(encoding="utf-8"))
        for item in sorted(found, key=lambda item: item.name)
    ]
