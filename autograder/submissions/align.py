"""Finds which of the learner's cells answers which exercise, whatever happened to the notebook.

Ids are believed where they are there, content decides: the answer to an exercise is the code that
defines its name and is not the stub that was handed out. Where several do, the last one counts, as
in a kernel that ran the notebook from top to bottom.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from autograder.i18n import _
from autograder.submissions.modules import Modules
from autograder.submissions.read import Cell, Notebook
from autograder.submissions.statements import NotPython, Statement, TooMuch, statements
from autograder.submissions.template import CHECK, Template

_DEFINITION = re.compile(r"^[ \t]*(?:def|class)\s+(\w+)", re.MULTILINE)
MAX_STATEMENTS = 20_000
"""Of the cells that a learner changed or added, all together."""
MAX_PASTED = 80_000
"""Characters of text cells that are read as code, all together: answers to a whole chapter have
thirty thousand."""
_FENCE = re.compile(r"[ ]{0,3}(```|~~~)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Found:
    """What was found for one exercise.

    Attributes:
        parts: the statements that answer it: the definition, and what changes it afterwards.
        problem: why Python cannot read the cell, or "".
        line: where, if known.
        is_open: it is as it was handed out, or missing.
        alias: the name under which it was defined, where that is another one.
        is_too_much: the problem is the cell's size.
    """

    parts: tuple[Statement, ...] = ()
    problem: str = ""
    line: int | None = None
    is_open: bool = False
    alias: str = ""
    is_too_much: bool = False


@dataclass
class Aligned:
    """A submission laid over what was handed out.

    Attributes:
        found: by exercise, in the template's order.
        added: the statements that the learner added, in the order of the notebook.
        notes: what is worth saying.
        repaired: whether something had to be mended to find an answer.
        said: exercises by what happened to them, until all are known (:data:`_SENTENCES`).
        modules: what the learner's statements call the modules that they use.
    """

    template: Template
    found: dict[str, Found] = field(default_factory=dict)
    added: list[Statement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    repaired: bool = False
    said: dict[str, list[str]] = field(default_factory=dict)
    modules: Modules = field(default_factory=Modules)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is answered."""
        return all(item.is_open for item in self.found.values())

    def note(self, text: str, *, repair: bool = False) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)
        self.repaired = self.repaired or repair

    def happened(self, what: str, name: str) -> None:
        """Say the same of several exercises in one sentence."""
        self.said.setdefault(what, []).append(name)


# What can happen to the cell of an exercise: the sentence, and whether it is a repair.
_SENTENCES: dict[str, tuple[Callable[[str], str], bool]] = {
    "several": (
        lambda names: _("Answered more than once, the last answer counts: {names}.").format(
            names=names
        ),
        True,
    ),
    "copies": (
        lambda names: _(
            "The cell is there more than once, the one that was answered counts: {names}."
        ).format(names=names),
        True,
    ),
    "elsewhere": (
        lambda names: _("Answered in another cell than its own: {names}.").format(names=names),
        True,
    ),
    "text": (
        lambda names: _("The answer stands in a text cell and was read as code: {names}.").format(
            names=names
        ),
        True,
    ),
    "missing": (
        lambda names: _("The cell is missing and counts as not answered: {names}.").format(
            names=names
        ),
        False,
    ),
}


@dataclass
class _Broken:
    position: int
    error: NotPython


def align(notebook: Notebook, template: Template) -> Aligned:
    """Lay a notebook over what was handed out."""
    aligned = Aligned(template)
    for note in notebook.notes:
        aligned.note(note, repair=True)
    own: list[Statement] = []
    broken: list[_Broken] = []
    texts, handed_out = template.texts, template.meanings
    room = MAX_STATEMENTS
    for position, cell in enumerate(notebook.cells):
        # most cells are as they were handed out
        if cell.kind != "code" or cell.source.strip() in texts:
            continue
        try:
            found, mended = statements(cell.source, position, aligned.modules)
            room -= len(found)
            if room < 0:
                raise TooMuch(_("the notebook has too many statements"), None)
        except NotPython as error:
            broken.append(_Broken(position, error))
            if isinstance(error, TooMuch):
                aligned.note(_("A cell was not read: {reason}.").format(reason=error.reason))
            continue
        if mended and any(
            name in item.names.makes for name in template.exercises for item in found
        ):
            aligned.note(mended, repair=True)
        own += [item for item in found if item.meaning not in handed_out]
    aligned.added = own
    pasted = _Texts(notebook.cells, aligned)
    for name in template.exercises:
        aligned.found[name] = _find(name, notebook, own, broken, aligned, pasted)
    aligned.modules.read(tree for item in aligned.added for tree in item.nodes)
    _note_ids(notebook, aligned)
    for what, (sentence, repair) in _SENTENCES.items():
        names = aligned.said.get(what)
        if names:
            aligned.note(sentence(", ".join(f"`{name}`" for name in names)), repair=repair)
    _note_order(aligned)
    return aligned


def _find(
    name: str,
    notebook: Notebook,
    own: Sequence[Statement],
    broken: Sequence[_Broken],
    aligned: Aligned,
    pasted: _Texts,
) -> Found:
    cells = notebook.cells
    answers = [item for item in own if name in item.names.makes and name not in item.names.needs]
    unreadable = [item for item in broken if _means(cells[item.position], name)]
    if not answers:
        answers = pasted.answers(name)
    if not answers:
        renamed = _renamed(name, cells, own, aligned.template)
        if renamed is not None:
            aligned.note(
                _("`{name}` is defined as `{alias}`; it was graded under its own name.").format(
                    name=name, alias=renamed.defines[0]
                ),
                repair=True,
            )
            return Found((renamed,), alias=renamed.defines[0])
    if not answers and unreadable:
        error = unreadable[-1].error
        return Found(problem=error.reason, line=error.line, is_too_much=isinstance(error, TooMuch))
    if not answers:
        if not any(name in (cell.id, cell.grade_id) or _defines(cell, name) for cell in cells):
            aligned.happened("missing", name)
        return Found(is_open=True)
    last = answers[-1]
    different = {item.meaning for item in answers}
    if len({item.cell for item in answers}) > 1 and len(different) > 1:
        aligned.happened("several", name)
    elif _copies(name, cells) > 1:
        aligned.happened("copies", name)
    after = [
        item
        for item in own
        if (name in item.names.changes or (name in item.names.makes and name in item.names.needs))
        and (item.cell, item.first) > (last.cell, last.first)
    ]
    return Found((last, *after))


def _means(cell: Cell, name: str) -> bool:
    """Whether a cell that Python cannot read is about an exercise."""
    return name in (cell.id, cell.grade_id) or _defines(cell, name)


def _defines(cell: Cell, name: str) -> bool:
    return name in _defined(cell.source)


@lru_cache(maxsize=4_096)
def _defined(source: str) -> frozenset[str]:
    """Names that look defined in a text, whether Python can read it or not."""
    return frozenset(_DEFINITION.findall(source))


def _copies(name: str, cells: Sequence[Cell]) -> int:
    by_id = sum(cell.kind == "code" and name in (cell.id, cell.grade_id) for cell in cells)
    by_content = sum(cell.kind == "code" and _defines(cell, name) for cell in cells)
    return max(by_id, by_content)


class _Texts:
    """The code in text cells: a cell's type was changed, or code was pasted as text.

    Each text is read once, whatever it holds, and in all no more than :data:`MAX_PASTED`.
    """

    def __init__(self, cells: Sequence[Cell], aligned: Aligned) -> None:
        self._aligned = aligned
        self._defines: dict[str, list[int]] = {}
        for position, cell in enumerate(cells):
            for name in _defined(cell.source) if cell.kind != "code" else ():
                self._defines.setdefault(name, []).append(position)
        self._cells = cells
        self._read: dict[int, list[Statement]] = {}
        self._taken: set[int] = set()
        self._room = MAX_PASTED

    def answers(self, name: str) -> list[Statement]:
        """The statements that answer an exercise; helpers beside them are added with them."""
        found: list[Statement] = []
        for position in self._defines.get(name, ()):
            parts = self._parts(position)
            answers = [item for item in parts if name in item.names.makes]
            if answers:
                # helpers in the same text cell count as the learner's as well
                self._aligned.added += [i for i in parts if id(i) not in self._taken]
                self._taken |= {id(item) for item in parts}
                found += answers
        if found:
            self._aligned.happened("text", name)
        return found

    def _parts(self, position: int) -> list[Statement]:
        """The learner's statements in a text cell."""
        if position not in self._read:
            parts: list[Statement] = []
            for text in _code_in(self._cells[position].source):
                try:
                    if len(text) > self._room or len(self._aligned.added) > MAX_STATEMENTS:
                        raise TooMuch(_("the text cells hold too much code"), None)
                    self._room -= len(text)
                    parts = statements(text, position, self._aligned.modules)[0]
                    break
                except TooMuch as error:
                    reason = error.reason
                    self._aligned.note(_("A cell was not read: {reason}.").format(reason=reason))
                except NotPython:
                    continue
            known = self._aligned.template.meanings
            self._read[position] = [item for item in parts if item.meaning not in known]
        return self._read[position]


def _code_in(text: str) -> Iterator[str]:
    fenced = _fenced(text)
    if fenced:
        yield "\n".join(fenced)
    yield text


def _fenced(text: str) -> list[str]:
    """What stands between fences, each with its end; line by line, since a text may be all fences
    without an end."""
    lines = text.split("\n")
    fences = [(number, match) for number, line in enumerate(lines) if (match := _FENCE.match(line))]
    # the last place at which a fence of each kind could end
    last = {match[1]: number for number, match in fences if not match[2].strip(" ")}
    found: list[str] = []
    kind, start = "", 0
    for number, match in fences:
        if not kind:
            if last.get(match[1], -1) > number:
                kind, start = match[1], number + 1
        elif match[1] == kind and not match[2].strip(" "):
            found.append("".join(f"{line}\n" for line in lines[start:number]))
            kind = ""
    return found


def _renamed(
    name: str, cells: Sequence[Cell], own: Sequence[Statement], template: Template
) -> Statement | None:
    """The answer under another name: in the exercise's cell, or with the stub's docstring."""
    docstring = next((item.docstring for item in template.stubs[name] if item.docstring), "")
    taken = set(template.exercises)
    candidates = [
        item
        for item in own
        if len(item.defines) == 1
        and item.defines[0] not in taken
        and (
            (docstring and item.docstring == docstring)
            or name in (cells[item.cell].id, cells[item.cell].grade_id)
        )
    ]
    with_docstring = [item for item in candidates if item.docstring == docstring]
    chosen = with_docstring or candidates
    return chosen[-1] if len(chosen) == 1 or with_docstring else None


def _note_ids(notebook: Notebook, aligned: Aligned) -> None:
    names = aligned.template.exercises
    known = set(names) | {name + CHECK for name in names}
    carried = {cell.id for cell in notebook.cells} | {cell.grade_id for cell in notebook.cells}
    answered = [name for name, item in aligned.found.items() if item.parts]
    if answered and not carried & known:
        aligned.note(
            _(
                "The cells do not carry the ids that were handed out (another program saved "
                "them); they were recognised by their content."
            ),
            repair=True,
        )
        return
    for name in answered:
        cell = notebook.cells[aligned.found[name].parts[0].cell]
        said = aligned.said.get("several", ()), aligned.said.get("copies", ())
        if name not in (cell.id, cell.grade_id, *said[0]) and cell.kind == "code":
            aligned.happened("elsewhere", name)
            if name in said[1]:  # its own cell is the other copy
                aligned.said["copies"].remove(name)


def _note_order(aligned: Aligned) -> None:
    places = [(item.parts[0].cell, name) for name, item in aligned.found.items() if item.parts]
    if places != sorted(places, key=lambda place: place[0]):
        aligned.note(_("Cells were moved; each answer was found where it is now."), repair=True)


def matches(notebook: Notebook, template: Template) -> float:
    """How much of a chapter is in a notebook: the share of its exercises, and a little for ids."""
    if not template.exercises:
        return 0.0
    ids = {cell.id for cell in notebook.cells} | {cell.grade_id for cell in notebook.cells}
    there: set[str] = set().union(*(_defined(cell.source) for cell in notebook.cells))
    defined = sum(name in there for name in template.exercises)
    carried = sum(name in ids or name + CHECK in ids for name in template.exercises)
    text = template.long_texts
    same = sum(cell.source.strip() in text for cell in notebook.cells)
    total = len(template.exercises)
    return (2 * defined + carried) / (3 * total) + 0.5 * same / max(len(text), 1)
