"""Sentences in which a person or an animal acts; see ``README.md`` in this folder."""

from importlib.resources import files


def sentences(part: str) -> tuple[list[str], list[int]]:
    """Read ``"train"`` or ``"test"``.

    Returns:
        The sentences, and their labels: 1 where the person acts, 0 where the animal does.

    Raises:
        ValueError: another part.
    """
    if part not in ("train", "test"):
        raise ValueError(f"there is no part {part!r}: give 'train' or 'test'")
    lines = (files(__name__) / f"{part}.tsv").read_text(encoding="utf-8").splitlines()
    labels, texts = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), [int(label) for label in labels]
