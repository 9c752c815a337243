"""Writes the sentences of this folder: ``python book/data/who_acts/prepare.py``.

A person and an animal, one of whom does something to the other. The label says who acts. Every
sentence has a twin in the same file with the two exchanged: the same words, the other label. So no
classifier that only counts words gets more than one of the two right.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

PEOPLE = (
    "baker", "doctor", "farmer", "guard", "judge", "miller", "nurse", "painter", "sailor",
    "singer", "tailor", "teacher",
)  # fmt: skip
ANIMALS = (
    "bear", "cat", "dog", "donkey", "fox", "goat", "goose", "hen", "horse", "parrot", "pig", "wolf",
)  # fmt: skip
VERBS = (
    "chased", "followed", "helped", "noticed", "passed", "pushed", "surprised", "trusted",
    "visited", "watched",
)  # fmt: skip
ADJECTIVES = ("hungry", "little", "old", "proud", "quiet", "tall", "tired", "young")
OPENINGS = ("", "", "yesterday", "in the evening", "on the bridge", "after the rain")
FORMS = (
    "{doer} {verb} {other}",
    "{other} was {verb} by {doer}",
    "it was {doer} that {verb} {other}",
    "it was {other} that {doer} {verb}",
)

PERSON_ACTS, ANIMAL_ACTS = 1, 0
PAIRS = {"train": 1500, "test": 500}
SEED = 2017


def noun_phrase(noun: str, adjective: str) -> str:
    """``the old baker``, or without the adjective where that is empty."""
    return " ".join(word for word in ("the", adjective, noun) if word)


def twins(person: str, animal: str, draw: random.Random) -> list[tuple[int, str]]:
    """A sentence and its twin, each with its label."""
    verb, form, opening = draw.choice(VERBS), draw.choice(FORMS), draw.choice(OPENINGS)
    one = noun_phrase(person, draw.choice(("", *ADJECTIVES)))
    two = noun_phrase(animal, draw.choice(("", *ADJECTIVES)))
    pair = []
    for label, doer, other in ((PERSON_ACTS, one, two), (ANIMAL_ACTS, two, one)):
        sentence = form.format(doer=doer, verb=verb, other=other)
        pair.append((label, f"{opening} {sentence}".strip()))
    return pair


def write(folder: Path) -> None:
    """Write ``train.tsv`` and ``test.tsv``: label, tab, sentence. Nouns meet in one only."""
    draw = random.Random(SEED)
    nouns = [(person, animal) for person in PEOPLE for animal in ANIMALS]
    draw.shuffle(nouns)
    quarter = len(nouns) // 4
    parts = {"test": nouns[:quarter], "train": nouns[quarter:]}
    for name, count in PAIRS.items():
        seen: set[str] = set()
        lines: list[str] = []
        while len(lines) < 2 * count:
            pair = twins(*draw.choice(parts[name]), draw)
            if pair[0][1] in seen:
                continue
            seen.update(sentence for _label, sentence in pair)
            draw.shuffle(pair)
            lines += [f"{label}\t{sentence}" for label, sentence in pair]
        text = "\n".join(lines) + "\n"
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    write(parser.parse_args().folder)
