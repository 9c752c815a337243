"""autograder.site.lean: style sheets and fonts cut to what the pages use."""

import pytest
from fontTools.ttLib import TTFont

from autograder.site import lean

WORDS = {"a", "div", "used", "also", "body", "html", "dark"}


@pytest.mark.parametrize(
    "rule",
    [
        ".used{color:red}",
        "div.used > a:hover{color:red}",
        "a:not(.gone){color:red}",
        'html[data-theme="dark"] .used{color:red}',
        "*,::before{color:red}",
        "@media print{.used{color:red}}",
        "@font-face{font-family:x;src:url(x.woff2)}",
        "@keyframes turn{from{opacity:0}to{opacity:1}}",
        "@import url(x.css);",
        '.used{content:"}"}',
    ],
)
def test_purge_keeps_what_may_match(rule):
    assert lean.purge(rule, WORDS).replace("\n", "") == rule


@pytest.mark.parametrize(
    "rule",
    [
        ".gone{color:red}",
        "div.used .gone{color:red}",
        "#gone{color:red}",
        "table{color:red}",
        "@media print{.gone{color:red}}",
        "/* only words */",
    ],
)
def test_purge_drops_what_matches_nothing(rule):
    assert lean.purge(rule, WORDS).strip() == ""


def test_purge_keeps_the_used_selectors_of_a_list():
    css = ".used,.gone:is(.a,.b),.also{color:red}"
    assert lean.purge(css, WORDS).strip() == ".used,.also{color:red}"


def test_purge_is_idempotent():
    css = ".used{color:red}.gone{color:red}@media print{.also{margin:0}}"
    once = lean.purge(css, WORDS)
    assert lean.purge(once, WORDS) == once


def test_the_math_font_holds_the_formulas_letters_and_even_radicals(tmp_path):
    page = "<h2>Größe</h2><math><mi>α</mi><mo>&#8721;</mo><msqrt><mi>h</mi></msqrt></math>"
    target = tmp_path / "fonts" / "math.woff2"
    lean._cut_math_font(target, [page])
    font = TTFont(target)
    letters = font.getBestCmap()
    # ß and ö of the heading, the sum, α and the italic letters that a browser puts for α and h
    assert {ord("ß"), ord("ö"), 0x2211, ord("α"), 0x1D6FC, 0x210E} <= letters.keys()
    assert ord("ж") not in letters
    variants = font["MATH"].table.MathVariants
    index = variants.VertGlyphCoverage.glyphs.index(letters[ord("√")])
    sizes = variants.VertGlyphConstruction[index].MathGlyphVariantRecord
    assert len(sizes) > 1
    assert len({font["hmtx"][size.VariantGlyph][0] for size in sizes}) == 1
    # The whole font has 1.5 MB
    assert target.stat().st_size < 60_000
