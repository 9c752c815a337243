"""A learner's first run: an empty folder that holds the one notebook, and no course installed.

The environment is new. It sees this one's packages, so that nothing has to be fetched, but none of
those that a learner does not have; and the repository's address leads to a clone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest

from autograder import chapters
from autograder.compose.files import repository

ROOT = Path(__file__).resolve().parent.parent
NOT_A_LEARNERS = (
    "transformer_taken_apart", "__editable__", "nbgrader", "msgpack", "jupyter_book", "jupytext",
    "sphinx", "myst_nb", "distributed", "dask", "playwright", "pip", "pytest",
)  # fmt: skip
STEM = "attention"


class Fresh:
    """The new environment."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.prefix = folder / "venv"
        venv.create(self.prefix, with_pip=True, symlinks=True)
        self.python = self.prefix / "bin" / "python"
        self.packages = Path(
            self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        )
        self._lend(folder / "lent")
        clone = folder / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        self.environment = {
            **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{clone.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": repository(ROOT),
            "HOME": str(folder),
            "PIP_NO_INDEX": "1",
            # pip reads the value of a negative option as that of the positive one
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def _lend(self, lent: Path) -> None:
        lent.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not path.name.startswith(NOT_A_LEARNERS):
                (lent / path.name).symlink_to(path)
        # A new environment may bring a setuptools too old for the build: the lent one counts.
        for path in [*self.packages.glob("setuptools*"), *self.packages.glob("pkg_resources")]:
            shutil.rmtree(path)
        (self.packages / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")

    def run(self, *args: str) -> str:
        """Run its Python in the folder of the notebook; what it printed."""
        result = subprocess.run(
            [str(self.python), *args],
            cwd=self.work,
            env=getattr(self, "environment", None),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=550,
            check=False,
        )
        assert result.returncode in (0, 1), result.stderr
        assert "Traceback" not in result.stderr, result.stderr
        return result.stdout.strip()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    found = Fresh(tmp_path_factory.mktemp("learner"))
    assert found.run("-c", "import importlib.util as u; print(u.find_spec('autograder'))") == "None"
    return found


@pytest.mark.build
def test_the_notebook_installs_what_it_needs_and_leaves_torch_alone(fresh: Fresh) -> None:
    nb = nbformat.read(ROOT / "book" / f"{STEM}.ipynb", 4)
    mistake = next(e for e in chapters.bank(STEM) if e.exercise == "attention_scores" and e.see)
    for cell in nb.cells:
        if cell.id == mistake.exercise:
            cell.source = mistake.source
    nbformat.write(nb, fresh.work / "attention.ipynb")
    fresh.run("-m", "nbconvert", "--execute", "--to", "notebook", "--output", "run.ipynb",
              "attention.ipynb")  # fmt: skip

    run = nbformat.read(fresh.work / "run.ipynb", 4)
    said = {
        cell.id: "".join(
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
        )
        for cell in run.cells
        if cell.cell_type == "code"
    }
    assert "✘" in said["attention_scores-check"]
    assert mistake.why.split(".")[0] in said["attention_scores-check"]
    # the installation remembers where it came from, so the link to the book is right
    assert (
        f".github.io/{repository(ROOT).rsplit('/', 1)[1]}/book/attention.html#"
        in (said["attention_scores-check"])
    )
    assert "`masked_softmax` is not answered yet." in said["masked_softmax-check"]
    assert "SoftLookup" in "".join(said.values())

    own = {path.name.split("-")[0] for path in fresh.packages.iterdir()}
    assert {"autograder", "solutions", "book"} <= own
    assert not own & {"torch", "numpy", "matplotlib"}


@pytest.mark.build
def test_the_installed_command_checks_the_notebook(fresh: Fresh) -> None:
    out = fresh.run("-m", "autograder", "check", "attention.ipynb")
    assert "`masked_softmax` is not answered yet." in out
    assert "points of the visible checks" in out
