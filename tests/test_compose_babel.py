"""Another language needs a catalogue and nothing else."""

from __future__ import annotations

import gettext
import io
import subprocess
import sys
from pathlib import Path

import pytest
import tinychapter
from babel.messages.extract import extract_from_file
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

from autograder.compose import chapter
from autograder.compose.babel import extract_checks, extract_prose

ROOT = Path(__file__).resolve().parent.parent


def messages(method: object, path: Path) -> list[str]:
    return [found[1] for found in extract_from_file(method, path)]  # type: ignore[arg-type]


def test_prose_and_what_checks_ask_are_collected(tmp_path: Path) -> None:
    path = tmp_path / "tiny.md"
    path.write_text(tinychapter.page(), encoding="utf-8")
    prose = messages(extract_prose, path)
    assert "A plot of nothing:" in prose
    assert any(text.startswith("(tiny-shift)=\n## Shifting") for text in prose)
    path.write_text("# No notebook\n", encoding="utf-8")
    assert messages(extract_prose, path) == []
    asks = messages(extract_checks, tinychapter.FOLDER / "checks.py")
    for name in ("shifted", "Shift", "doubled"):
        exercise = tinychapter.exercise(name)
        assert {exercise.title, *exercise.hints} <= set(asks)
        assert {check.asks for check in exercise.checks} <= set(asks)


def test_a_catalogue_translates_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    po = 'msgid "A plot of nothing:"\nmsgstr "Ein Bild von nichts:"\n'
    data = io.BytesIO()
    write_mo(data, read_po(io.StringIO(po), locale="de"))
    data.seek(0)
    monkeypatch.setattr(chapter, "_", gettext.GNUTranslations(data).gettext)
    student = chapter.compose(tinychapter.sources()).student
    sources = [cell["source"] for cell in student["cells"]]
    assert "Ein Bild von nichts:" in sources
    assert "A plot of nothing:" not in sources


def test_the_whole_repository_is_collected(tmp_path: Path) -> None:
    out = tmp_path / "messages.pot"
    command = [sys.executable, "-m", "babel.messages.frontend", "extract"]
    subprocess.run(
        [*command, "-F", "babel.cfg", "-o", str(out), "--no-location", "."],
        cwd=ROOT, check=True, timeout=120,
    )  # fmt: skip
    found = {message.id for message in read_po(io.StringIO(out.read_text("utf-8")))}
    for text in ("Worked answer", "{n} more check runs when the notebook is graded."):
        assert any(text == key or text in key for key in found), text
    assert any(isinstance(key, str) and key.startswith("# Attention") for key in found)
