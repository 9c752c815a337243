"""Where a chapter's generated files lie, how they are written, and whether they are fresh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.compose import notebook
from autograder.compose.chapter import Composed
from autograder.sources import SourceError


@dataclass(frozen=True)
class Files:
    """The files of one chapter in the repository at ``root``."""

    root: Path
    stem: str

    @property
    def student(self) -> Path:
        """The notebook that is handed out; committed."""
        return self.root / "book" / f"{self.stem}.ipynb"

    @property
    def worked(self) -> Path:
        """The worked notebook with text outputs; committed."""
        return self.root / "solutions" / "notebooks" / f"{self.stem}.ipynb"

    @property
    def executed(self) -> Path:
        """The worked notebook with all outputs; built."""
        return self.root / "_build" / "worked" / f"{self.stem}.ipynb"

    @property
    def executed_from(self) -> Path:
        """What the executed notebook was made from, as a hash."""
        return self.executed.with_suffix(".sha256")

    @property
    def page(self) -> Path:
        """Hints and answers for the built page; built."""
        return self.root / "_build" / "page" / f"{self.stem}.json"


def write(path: Path, text: str) -> bool:
    """Write a generated file where it differs; True where it did.

    A file that stays as it was keeps its date, so that `make` sees that nothing changed.
    """
    data = text.encode("utf-8")
    if path.exists() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return True


def write_composed(files: Files, composed: Composed) -> list[Path]:
    """Write the notebooks (known outputs stay) and the page; return the files that changed."""
    worked = notebook.with_outputs_of(composed.worked, notebook.read(files.worked))
    page = json.dumps(composed.page, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    wanted = {
        files.student: notebook.dumps(composed.student),
        files.worked: notebook.dumps(worked),
        files.page: page,
    }
    return [path for path, text in wanted.items() if write(path, text)]


def drift(files: Files, composed: Composed) -> Iterator[str]:
    """One line for each committed notebook that is not what its sources make."""
    for path, fresh in ((files.student, composed.student), (files.worked, composed.worked)):
        name = path.relative_to(files.root).as_posix()
        mend = f"run `python -m autograder compose {files.stem}`"
        if not path.exists():
            yield f"{name} is missing; {mend}"
            continue
        kept = notebook.read(path)
        if kept is None:
            yield f"{name} is no notebook; {mend}"
            continue
        if path == files.student and any(cell.get("outputs") for cell in kept["cells"]):
            yield f"{name} holds outputs; {mend}"
            continue
        cell_id = _first_difference(notebook.without_outputs(kept), fresh)
        if cell_id is not None:
            source = composed.origin.get(cell_id, f"book/{files.stem}.md")
            yield (
                f"{name} is stale at cell {cell_id!r}; edit {source} (never the notebook), "
                f"then {mend}"
            )


def _first_difference(kept: dict[str, Any], fresh: dict[str, Any]) -> str | None:
    if kept == fresh:
        return None
    ids = {cell["id"] for cell in fresh["cells"]}
    for old, new in zip(kept["cells"], fresh["cells"], strict=False):
        if old != new:
            # where a cell was put in or taken out, name the one that the sources know
            return str(new["id"] if old.get("id") not in ids else old["id"])
    if len(kept["cells"]) < len(fresh["cells"]):
        return str(fresh["cells"][len(kept["cells"])]["id"])
    return str(fresh["cells"][-1]["id"])


def orphans(root: Path, stems: list[str]) -> Iterator[str]:
    """One line for each committed notebook that no chapter makes."""
    for folder in (root / "book", root / "solutions" / "notebooks"):
        for path in sorted(folder.glob("*.ipynb")):
            if path.stem not in stems:
                yield (
                    f"{path.relative_to(root).as_posix()} belongs to no chapter of _toc.yml; "
                    "delete it, or add the chapter"
                )


def repository(root: Path) -> str:
    """The repository's address: ``repository: url:`` of ``_config.yml``, the one place of it.

    Raises:
        SourceError: it is not there.
    """
    import yaml  # noqa: PLC0415

    path = root / "_config.yml"
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    url = ((config or {}).get("repository") or {}).get("url")
    if not url:
        raise SourceError("_config.yml: repository: url: is missing; write its address")
    return str(url).rstrip("/")
