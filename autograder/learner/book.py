"""Where the book stands on the web, as far as this installation knows."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = "transformer-taken-apart"
ROOT = Path(__file__).resolve().parents[2]

_URL = re.compile(
    r"^repository:\s*\n(?:[ \t]+.*\n)*?[ \t]+url:[ \t]*[\"']?(?P<url>[^\s\"']+)", re.M
)
_HOSTED = re.compile(r"^https://github\.com/(?P<owner>[^/]+)/(?P<name>[^/]+?)(?:\.git)?/?$")


@cache
def repository() -> str | None:
    """The repository's address, or None where it cannot be known.

    It is written down once, in ``_config.yml``. An installation has no such file, but remembers
    the address that it was installed from (PEP 610).
    """
    config = ROOT / "_config.yml"
    if config.exists():
        match = _URL.search(config.read_text(encoding="utf-8"))
        return match["url"] if match else None
    try:
        text = metadata.distribution(PACKAGE).read_text("direct_url.json")
        return str(json.loads(text or "{}")["url"])
    except (metadata.PackageNotFoundError, KeyError, ValueError):
        return None


def section_url(stem: str, label: str) -> str | None:
    """Address of a section of the published book, or None where none is known."""
    match = _HOSTED.match(repository() or "")
    if match is None:
        return None
    # Sphinx makes an anchor of a label
    anchor = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return f"https://{match['owner'].lower()}.github.io/{match['name']}/book/{stem}.html#{anchor}"
