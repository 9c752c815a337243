"""What is done to the built site: style sheets, fonts and files cut to what its pages use.

Everything here is idempotent: Sphinx copies its static files anew at every build.
"""

import html
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import tinycss2
from fontTools import subset
from fontTools.ttLib import TTFont

ICONS = "_static/vendor/fontawesome/webfonts"
UNUSED = ("*.map", "scripts/fontawesome.js*", "locales", "*webpack-macros.html", "vendor/**/*.ttf")

_WORD = re.compile(r"[A-Za-z0-9_-]+")
_NAME = re.compile(r"[.#]?-?[A-Za-z_][\w-]*")
_PARENTHESES = re.compile(
    r":(?:not|is|where|has)\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]|::?[\w-]+(?:\([^()]*\))?"
)
_MATH = re.compile(r"<math.*?</math>", re.DOTALL)
_HEADING = re.compile(r"<(h[1-6])\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def trim(site: Path) -> None:
    """Cut the static files of the site at ``site`` to what its pages use."""
    static = site / "_static"
    for pattern in UNUSED:
        for path in sorted(static.rglob(pattern), reverse=True):
            _remove(path)
    pages = [path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))]
    scripts = [path.read_text(encoding="utf-8") for path in sorted(static.rglob("*.js"))]
    words = set(_WORD.findall("\n".join([*pages, *scripts])))
    for sheet in sorted(static.rglob("*.css")):
        text = sheet.read_text(encoding="utf-8")
        sheet.write_text(purge(text, words), encoding="utf-8")
    _cut_icons(site)
    _cut_math_font(static / "fonts" / "stix-two-math.woff2", pages)


def purge(css: str, words: set[str]) -> str:
    """``css`` without the rules whose classes, ids or elements are in none of ``words``.

    A selector stays unless it surely matches nothing: what stands inside ``:not()`` and its like,
    in attribute selectors and in pseudo-classes is not looked at.
    """
    rules = tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True)
    return "\n".join(_kept(rules, words)) + "\n"


def _kept(rules: Iterable[tinycss2.ast.Node], words: set[str]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = _split(tinycss2.serialize(rule.prelude))
            used = [one.strip() for one in selectors if _used(one, words)]
            if used:
                body = tinycss2.serialize(rule.content).strip()
                yield f"{','.join(used)}{{{body}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword in {"media", "supports", "layer"}:
            if rule.content is None:
                yield rule.serialize()
                continue
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            body = "\n".join(_kept(inner, words))
            if body:
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{body}}}"
        elif rule.type != "error":
            yield rule.serialize()


def _split(selectors: str) -> list[str]:
    """The selectors of a list, split at its commas but not at those in parentheses."""
    parts, depth = [""], 0
    for character in selectors:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _used(selector: str, words: set[str]) -> bool:
    plain = _PARENTHESES.sub(" ", selector).replace("\\", "")
    return all(name.lstrip(".#") in words for name in _NAME.findall(plain))


def _cut_icons(site: Path) -> None:
    """Keep those icons of the icon fonts that the style sheets still name, after the purge."""
    css = (site / "_static/styles/pydata-sphinx-theme.css").read_text(encoding="utf-8")
    used = {ord(letter) for letter in css if "\ue000" <= letter <= "\uf8ff"}  # the private use area
    for path in sorted((site / ICONS).glob("*.woff2")):
        _subset(TTFont(path), path, used, features=[])


def _cut_math_font(target: Path, pages: list[str]) -> None:
    """Write STIX Two Math with the characters of the formulas and the headings.

    ziamath carries the font, under the SIL Open Font License.
    """
    text = {chr(code) for code in range(0x20, 0x7F)} | set("–—‘’“”…·×√′")
    for page in pages:
        for match in [*_MATH.finditer(page), *_HEADING.finditer(page)]:
            text |= set(html.unescape(_TAG.sub("", match[0])))
    # A browser sets a one-letter <mi> in mathematical italic: the letter of the Unicode block.
    codes = {ord(letter) for letter in text}
    codes |= {italic for letter in text if (italic := _italic(letter))} | {ord("√")}
    target.parent.mkdir(exist_ok=True)
    # By its path: importing ziamath would read fonts and warn of its own use of the library.
    font = TTFont(distribution("ziamath").locate_file("ziamath/fonts/STIXTwoMath-Regular.ttf"))
    _even_radicals(font)
    _subset(font, target, codes, features=["kern", "liga", "ssty", "dtls", "mkmk", "mark"])


def _even_radicals(font: TTFont) -> None:
    """Make every size of the radical sign as wide as the smallest.

    Chromium gives a root the width of the widest radical there is, whichever it draws, and leaves
    the difference blank behind it (seen in version 156). Where all are equally wide it cannot.
    """
    variants = font["MATH"].table.MathVariants
    radical = font.getBestCmap()[ord("√")]
    construction = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(radical)]
    width = font["hmtx"][radical][0]
    names = [record.VariantGlyph for record in construction.MathGlyphVariantRecord]
    names += [part.glyph for part in construction.GlyphAssembly.PartRecords]
    for name in names:
        advance, bearing = font["hmtx"][name]
        glyph = font["glyf"][name]
        glyph.coordinates.scale((width / advance, 1))
        glyph.coordinates.toInt()
        glyph.recalcBounds(font["glyf"])
        font["hmtx"][name] = (width, round(bearing * width / advance))


def _subset(font: TTFont, target: Path, codes: set[int], features: list[str]) -> None:
    options = subset.Options(
        flavor="woff2", layout_features=features, notdef_outline=True, hinting=False
    )
    options.drop_tables += ["DSIG"]
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=codes)
    cutter.subset(font)
    font.flavor = "woff2"
    font.save(target)


def _italic(letter: str) -> int | None:
    """The code point of a letter's mathematical italic."""
    for first, last, start in (
        ("A", "Z", 0x1D434),
        ("a", "z", 0x1D44E),
        ("Α", "Ω", 0x1D6E2),
        ("α", "ω", 0x1D6FC),
    ):
        if first <= letter <= last:
            return 0x210E if letter == "h" else start + ord(letter) - ord(first)
    return {"∂": 0x1D715, "ϵ": 0x1D716, "ϑ": 0x1D717, "ϕ": 0x1D719, "ϱ": 0x1D71A, "ϖ": 0x1D71B}.get(
        letter
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        for child in path.iterdir():
            _remove(child)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
