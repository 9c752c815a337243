"""Runs a worked notebook, once for each state of its sources and of the code that it imports."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from autograder.compose import notebook
from autograder.compose.files import Files, write
from autograder.guest.cells import python_of
from autograder.guest.syntax import syntax_tree
from autograder.sources import SourceError

PACKAGES = ("autograder", "book", "solutions")
"""The repository's own packages; code outside them is known by its version."""

SECONDS_A_CELL = 300
VERSIONS = ("torch", "matplotlib", "numpy", "anywidget", "ipywidgets", "ipykernel")


def run(files: Files, worked: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The worked notebook with all its outputs and the state of its widgets.

    Returns:
        The notebook, and whether it had to run: where sources and imports are as they were, the
        kept run is returned.

    Raises:
        SourceError: a cell raised, and was not marked to.
    """
    state = fingerprint(files, worked)
    kept = _kept(files, state)
    if kept is not None:
        return kept, False
    executed = _execute(files, worked)
    write(files.executed, notebook.dumps(executed))
    write(files.executed_from, state + "\n")
    return executed, True


def kept_run(files: Files, worked: dict[str, Any]) -> dict[str, Any] | None:
    """The notebook of :func:`run`, where a run of these very sources and imports is kept."""
    return _kept(files, fingerprint(files, worked))


def _kept(files: Files, state: str) -> dict[str, Any] | None:
    if not files.executed_from.exists():
        return None
    if files.executed_from.read_text("utf-8").strip() != state:
        return None
    return notebook.read(files.executed)


def _execute(files: Files, worked: dict[str, Any]) -> dict[str, Any]:
    # nbclient is needed here alone: composing and checking do without it.
    import nbformat  # noqa: PLC0415
    from nbclient import NotebookClient  # noqa: PLC0415
    from nbclient.exceptions import CellExecutionError, CellTimeoutError  # noqa: PLC0415

    nb = nbformat.from_dict(worked)
    # An empty folder: what a page needs it imports, it reads no files beside it.
    with tempfile.TemporaryDirectory(prefix="worked-") as folder:
        client = NotebookClient(
            nb,
            timeout=SECONDS_A_CELL,
            kernel_name="python3",
            # ipykernel warns that it speaks TCP, which is all that Windows has
            extra_arguments=["--log-level=ERROR"],
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        path = os.pathsep.join(
            part for part in (str(files.root), os.environ.get("PYTHONPATH", "")) if part
        )
        try:
            client.execute(env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"})
        except (CellExecutionError, CellTimeoutError) as error:
            raise SourceError(_failure(files, nb, error)) from error
    executed = notebook.merged_streams(notebook.loads(nbformat.writes(nb)))
    executed["metadata"]["language_info"] = {"name": "python"}
    return executed


def _failure(files: Files, nb: Any, error: Exception) -> str:
    cell = next(
        (
            cell
            for cell in nb.cells
            if cell.cell_type == "code"
            and any(output.output_type == "error" for output in cell.outputs)
            and "raises-exception" not in cell.metadata.get("tags", [])
        ),
        None,
    )
    place = f"cell {cell.id!r}" if cell is not None else "a cell"
    raised = getattr(error, "ename", None)
    said = f"it takes more than {SECONDS_A_CELL} s"
    if raised:
        said = f"{raised}: {getattr(error, 'evalue', '')}"
    return (
        f"worked notebook of {files.stem}: {place} fails: {' '.join(said.split())}; "
        f"mend book/{files.stem}.md or solutions/{files.stem}.py"
    )


def fingerprint(files: Files, worked: dict[str, Any]) -> str:
    """A hash of all that the run depends on: cells, imported code with its data, versions."""
    digest = hashlib.sha256(notebook.dumps(worked).encode("utf-8"))
    for path in sorted(imported_files(files, worked)):
        digest.update(path.relative_to(files.root).as_posix().encode("utf-8"))
        digest.update(path.read_bytes())
    for package in VERSIONS:
        try:
            digest.update(f"{package} {metadata.version(package)}".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{package} missing".encode())
    digest.update(platform.python_version().encode())
    return digest.hexdigest()


def imported_files(files: Files, worked: dict[str, Any]) -> set[Path]:
    """The repository's files that a worked notebook imports, directly or by way of others.

    A module stands for the files that lie beside it under its own name (a figure's ``.js``), and a
    package of ``book/data`` for all files in it.
    """
    # `check` finds a chapter's checks and bank by name, which no import statement shows.
    waiting = [
        *(f"autograder.{kind}.{files.stem}" for kind in ("checks", "answers")),
        *(f"autograder.learner.{module}" for module in ("session", "figures")),
    ]
    for cell in worked["cells"]:
        if cell["cell_type"] == "code":
            waiting += _imports(python_of(cell["source"]), "")
    seen: set[str] = set()
    found: set[Path] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or module.split(".")[0] not in PACKAGES:
            continue
        seen.add(module)
        parent = module.rpartition(".")[0]
        waiting += [parent] if parent else []
        path = _file_of(files.root, module)
        if path is None:
            continue
        found |= _with_data(files.root, path)
        package = module if path.name == "__init__.py" else parent
        waiting += _imports(path.read_text(encoding="utf-8"), package)
    return found


def _file_of(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.exists():
            return path
    return None


def _with_data(root: Path, path: Path) -> set[Path]:
    if path.name == "__init__.py":
        if path.parent.parent == root / "book" / "data":
            return {
                item
                for item in path.parent.rglob("*")
                if item.is_file() and "__pycache__" not in item.parts
            }
        return {path}
    return {item for item in path.parent.glob(f"{path.stem}.*") if item.is_file()}


def _imports(source: str, package: str) -> Iterator[str]:
    try:
        tree = syntax_tree(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
            yield base
            # `from package import module`
            yield from (f"{base}.{alias.name}" for alias in node.names)
