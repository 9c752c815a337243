"""The moving figures: their numbers against torch, their words, and their working by hand."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import traitlets

from book.figures.common import module as joined
from book.figures.gradient_depth import GradientDepth
from book.figures.position_clock import PositionClock
from book.figures.soft_lookup import (
    WIDTHS,
    SoftLookup,
    sentences,
    softmax_jacobian,
    widen_keys,
    widen_queries,
)
from book.figures.transformer_map import TransformerMap

FIGURES = Path(__file__).parent.parent / "book" / "figures"
COMMON = FIGURES / "common.js"
MODULES = sorted(set(FIGURES.glob("*.js")) - {COMMON})
PAGE = Path(__file__).parent / "figures" / "page.html"

# What the reader may do to the figure, its ends included; the last one saturates completely.
STATES: list[dict[str, Any]] = [
    {},
    {"scale": False},
    {"temperature": 0.1},
    {"temperature": 10.0, "scale": False},
    *({"width": width, "scale": scale} for width in WIDTHS for scale in (True, False)),
    {"q": [0, 0], "scale": False},
    {"k": [[1, -2], [0.3, 0.4]], "v": [[2, 1], [-1, 2]]},
    {"q": [2.5, -2.5], "scale": False, "width": 128, "temperature": 0.1},
]


def chromium() -> Any:
    """Starts the system's Chromium, or fails with one line that says how to get it."""
    from playwright.sync_api import Error, sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.fail("no Chromium found: install it, or set CHROMIUM to its path", pytrace=False)
    playwright = sync_playwright().start()
    try:
        started = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
    except Error as error:
        playwright.stop()
        first_line = str(error).splitlines()[0]
        pytest.fail(f"{path} does not start: {first_line}", pytrace=False)
    return playwright, started


def in_javascript(module: Path, expression: str, argument: Any, folder: Path) -> Any:
    """The value of ``expression`` over the module's exports (``figure``) and ``argument``.

    In node where there is one, else in Chromium.
    """
    source = joined(module.stem)
    node = shutil.which("node")
    if node is None:
        playwright, started = chromium()
        try:
            return started.new_page().evaluate(
                """async ([source, expression, argument]) => {
                  const blob = new Blob([source], { type: "text/javascript" });
                  const figure = await import(URL.createObjectURL(blob));
                  return new Function("figure", "argument", `return ${expression}`)(
                    figure, argument);
                }""",
                [source, expression, argument],
            )
        finally:
            started.close()
            playwright.stop()
    # Without a package.json, node takes a .js file for a CommonJS module.
    (folder / "figure.mjs").write_text(source, encoding="utf-8")
    (folder / "run.mjs").write_text(
        'import * as figure from "./figure.mjs";\n'
        f"const argument = {json.dumps(argument)};\n"
        f"console.log(JSON.stringify({expression}));\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [node, "run.mjs"], cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def flat(value: Any) -> list[float]:
    return [x for part in value for x in flat(part)] if isinstance(value, list) else [value]


# -- every figure


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_figure_stands_alone(module: Path) -> None:
    source = joined(module.stem)
    assert module.with_suffix(".py").is_file()
    assert not re.search(r"^\s*import\b|\bimport\(|\bfetch\(|XMLHttpRequest", source, re.MULTILINE)
    addresses = set(re.findall(r"https?://[^\s\"'`]+", source))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_figure_names_nothing_as_the_common_part_does(module: Path) -> None:
    """Joined they are one module, in which a second declaration of a name is an error."""
    declared = re.compile(r"^(?:export )?(?:function|const|let|class) (\w+)", re.MULTILINE)
    own, common = (set(declared.findall(path.read_text("utf-8"))) for path in (module, COMMON))
    assert common
    assert not own & common


def test_marks_can_be_told_apart() -> None:
    """Against the theme's surfaces, and the first four from one another without one kind of cone.

    3:1 is WCAG 2.1, 1.4.11. The matrices are those of Machado, Oliveira and Fernandes 2009 at full
    severity, in linear sRGB; OKLab is Ottosson 2020. 0.09 is what the palette was chosen for: of
    two colours at that distance side by side nobody takes one for the other, and marks differ by
    shape as well.
    """
    cones = {
        "all": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        "no long": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "no middle": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        "no short": [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    }
    lms = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]

    def linear(colour: str) -> torch.Tensor:
        c = torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return torch.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)

    def luminance(colour: str) -> float:
        return float(linear(colour) @ torch.tensor([0.2126, 0.7152, 0.0722]))

    source = COMMON.read_text(encoding="utf-8")
    schemes = re.findall(r"const (light|dark) = `(.*?)`;", source, re.S)
    assert [name for name, _ in schemes] == ["light", "dark"]
    for (_, scheme), surfaces in zip(
        schemes, [("#ffffff", "#f3f4f5"), ("#14181e", "#29313d")], strict=True
    ):
        colours = re.findall(r"--fig-\d: (#\w{6});", scheme)
        assert len(colours) == 6
        for colour, surface in itertools.product(colours, surfaces):
            low, high = sorted((luminance(colour), luminance(surface)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, surface)
        for name, matrix in cones.items():
            seen = [
                torch.tensor(lab)
                @ (torch.tensor(lms) @ (torch.tensor(matrix) @ linear(c)).clamp(0, 1)) ** (1 / 3)
                for c in colours[:4]
            ]
            for (i, one), (j, other) in itertools.combinations(enumerate(seen), 2):
                assert torch.dist(one, other) >= 0.0895, (name, i + 1, j + 1)


# -- the soft look-up: numbers


def test_the_figure_computes_what_the_reference_computes(tmp_path: Path) -> None:
    widgets = [SoftLookup(**state) for state in STATES]
    references = [widget.reference() for widget in widgets]
    computed = in_javascript(
        FIGURES / "soft_lookup.js", "argument.map(figure.attend)", references, tmp_path
    )
    for ours, right in zip(computed, references, strict=True):
        # Both are float64, at most 2000 in the exponent: about 1e-13 of a weight is lost.
        for part in ("weights", "jacobian", "gradient"):
            assert flat(ours[part]) == pytest.approx(flat(right[part]), rel=1e-6, abs=0), part
        # Sums whose terms cancel, or -w log w with w one rounding (1e-16) from 1: absolute there.
        for part in ("output", "entropy"):
            assert flat(ours[part]) == pytest.approx(flat(right[part]), rel=1e-6, abs=1e-12), part


def test_the_figure_notices_numbers_that_are_not_its_own(tmp_path: Path) -> None:
    right = SoftLookup().initial
    wrong = {**right, "weights": [w + 1e-4 for w in right["weights"]]}
    agree = "argument.map((them) => figure.agree(figure.attend(them).weights, them.weights))"
    module = FIGURES / "soft_lookup.js"
    assert in_javascript(module, agree, [right, wrong], tmp_path) == [True, False]


def test_the_output_stays_in_the_outline(tmp_path: Path) -> None:
    square = [[-1, -1], [1, 1], [0, 0.5], [1, -1], [-1, 1]]
    found = in_javascript(FIGURES / "soft_lookup.js", "figure.outline(argument)", square, tmp_path)
    assert found == [[-1, -1], [1, -1], [1, 1], [-1, 1]]


@pytest.mark.parametrize("width", WIDTHS)
def test_widened_vectors_spread_as_those_of_a_wide_head(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 20_000, 2, dtype=torch.float64, generator=generator)  # (20000, 2) each
    wide_q, wide_k = widen_queries(q, width), widen_keys(k, width)  # (20000, d)
    assert wide_q.shape == wide_k.shape == (20_000, width)
    # Components keep their size: the mean square of the d is that of the two.
    torch.testing.assert_close(wide_k.square().mean(dim=1), k.square().mean(dim=1))
    dots = (wide_q * wide_k).sum(dim=1)  # (20000,)
    torch.testing.assert_close(dots, math.sqrt(width / 2) * (q * k).sum(dim=1))
    # Independent components have standard deviation √d; that of 20,000 samples is 1 % uncertain.
    assert float(dots.std()) == pytest.approx(math.sqrt(width), rel=0.05)


def test_the_jacobian_is_the_derivative_of_the_softmax() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    right = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, dim=-1), scores)
    torch.testing.assert_close(softmax_jacobian(torch.softmax(scores, dim=-1)), right)


def test_without_the_root_a_wide_head_saturates() -> None:
    scaled, unscaled = (SoftLookup(width=64, scale=scale).initial for scale in (True, False))
    assert max(unscaled["weights"]) > 0.99
    assert max(scaled["weights"]) < 0.7
    assert unscaled["gradient"] < scaled["gradient"] / 50
    assert unscaled["entropy"] < scaled["entropy"] / 10


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"q": [3, 0]}, r"q is \[3, 0\]: give two numbers from -2.5 to 2.5"),
        ({"q": [math.nan, 0]}, "q is .*: give two numbers"),
        ({"k": [[0, 0], [1]]}, r"k\[1\] is \[1\]: give two numbers"),
        ({"k": [[0, 0]]}, "k has 1 points: give 2 to 6"),
        ({"v": [[0, 0], [1, 1]]}, "4 keys and 2 values: give each key its value"),
        ({"width": 3}, "width is 3: give one of 2, 4, 8, 16, 32, 64, 128"),
        ({"temperature": 0}, "temperature is 0.*: give a number from 0.1 to 10"),
    ],
)
def test_a_state_that_cannot_be_drawn_is_refused_in_one_line(
    state: dict[str, Any], says: str
) -> None:
    with pytest.raises(traitlets.TraitError, match=f"^{says}") as refused:
        SoftLookup(**state)
    assert "\n" not in str(refused.value)


# -- the soft look-up: words


def test_every_word_comes_from_python_and_is_used() -> None:
    source = (FIGURES / "soft_lookup.js").read_text(encoding="utf-8")
    assert set(re.findall(r"(?<!svg )\btext\.([a-z_]+)\b", source)) == set(sentences())


def test_the_state_holds_all_that_a_page_needs() -> None:
    state = SoftLookup().get_state()
    assert state["_esm"] == joined("soft_lookup")
    assert state["text"] == sentences()
    assert repr(SoftLookup()) == repr(SoftLookup())  # no address: outputs can be compared


# -- the soft look-up: by hand


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright, started = chromium()
    yield started
    started.close()
    playwright.stop()


def on_a_page(widget: Any, folder: Path) -> str:
    """The address of a page without a kernel that shows the figure."""
    state = {name: value for name, value in widget.get_state().items() if name != "layout"}
    file = folder / "page.html"
    filled = PAGE.read_text(encoding="utf-8").replace(
        "STATE", json.dumps(state).replace("</", r"<\/")
    )
    file.write_text(filled, encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The figure in a page without a kernel, at a phone's width; whatever it complains of fails."""
    address = on_a_page(SoftLookup(), tmp_path)
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []


def weights(page: Any) -> list[str]:
    return [cell.inner_text() for cell in page.locator(".fig-look-weights td:nth-child(4)").all()]


def gradient(page: Any) -> str:
    return page.locator(".fig-look-gradient").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("widget", "gestures", "chosen"),
    [
        (
            TransformerMap,
            [(".map-part >> nth=0", "Enter"), ("input >> nth=0", "ArrowRight")],
            {"part": "source_embedding"},
        ),
        (PositionClock, [("input >> nth=2", "ArrowRight")], {"t": 10, "s": 6}),  # both together
        (
            GradientDepth,
            [("[type=checkbox]", "Space"), ("[type=range] >> nth=0", "ArrowRight")],
            {"residual": True, "depth": 25},
        ),
    ],
)
def test_what_a_reader_chooses_stays_though_the_model_tells_each_change(
    browser: Any, tmp_path: Path, widget: Any, gestures: Any, chosen: dict[str, Any]
) -> None:
    """A figure follows its model: it must not follow it back to values that are yet to be set."""
    page = browser.new_page()
    page.goto(on_a_page(widget(), tmp_path))
    page.wait_for_selector("body[data-ready]")
    before = page.evaluate("structuredClone(state)")
    for place, key in gestures:
        page.locator(place).press(key)
    after = page.evaluate("state")
    assert {name: after[name] for name in chosen} == chosen
    page.get_by_role("button", name="Reset").press("Enter")
    assert page.evaluate("state") == before
    page.close()


@pytest.mark.browser
def test_the_first_numbers_are_those_of_python(page: Any) -> None:
    initial = SoftLookup().initial
    assert weights(page) == [f"{w:.3f}" for w in initial["weights"]]
    assert gradient(page) == f"largest entry {initial['gradient']:.3f}"
    assert page.locator(".fig-look-verdict").inner_text() == sentences()["agrees"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.browser
def test_the_keyboard_moves_points_and_numbers_follow(page: Any) -> None:
    before = weights(page)
    page.get_by_role("button", name="Reset").focus()
    page.keyboard.press("Tab")  # the query is the first point after the settings
    query = page.get_by_role("slider", name="query q")
    assert query.evaluate("element => element === document.activeElement")
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("ArrowUp")
    expected = SoftLookup(q=[0.8, 0.4])
    assert query.get_attribute("aria-valuetext") == "x 0.80, y 0.40"
    assert weights(page) != before
    assert weights(page) == [f"{w:.3f}" for w in expected.initial["weights"]]
    assert page.evaluate("calls") == ["save_changes"] * 2
    # Said once, after the reader has stopped.
    said = page.get_by_role("status")
    said.filter(has_text="Weights: key 1").wait_for(state="attached")
    # At the edge a point stays in the plane.
    for _step in range(9):
        page.keyboard.press("Shift+ArrowRight")
    assert query.get_attribute("aria-valuetext") == "x 2.50, y 0.40"
    page.get_by_role("button", name="Reset").press("Enter")
    assert weights(page) == before


@pytest.mark.browser
def test_the_switches_saturate_the_softmax(page: Any) -> None:
    page.get_by_label("divide by √d").press("Space")
    unscaled = SoftLookup(scale=False).initial
    assert weights(page)[0] == f"{unscaled['weights'][0]:.3f}"
    assert gradient(page) == f"largest entry {unscaled['gradient']:.3f}"
    page.get_by_label("head width d").press("ArrowRight")
    assert "·10⁻" in gradient(page)
    page.get_by_label("temperature τ").press("End")
    hot = SoftLookup(scale=False, width=128, temperature=10).initial
    assert weights(page) == [f"{w:.3f}" for w in hot["weights"]]


@pytest.mark.browser
def test_a_finger_moves_a_point_and_not_the_page(page: Any) -> None:
    query = page.get_by_role("slider", name="query q")
    query.scroll_into_view_if_needed()
    scrolled = page.evaluate("scrollY")
    box = query.locator(".fig-hit").bounding_box()
    assert min(box["width"], box["height"]) >= 42
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        places = [{"x": left, "y": top} for left, top in points]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", (x, y))
    for step in range(1, 11):
        touch("touchMove", (x - 10 * step, y - 10 * step))
    touch("touchEnd")
    unit = page.locator(".fig-look-keys svg").bounding_box()["width"] / 320 * 60
    page.wait_for_function("calls.length === 1")
    place = f"x {1.3 - 100 / unit:.2f}, y {0.3 + 100 / unit:.2f}"
    assert query.get_attribute("aria-valuetext") == place.replace("-", "−")
    assert page.evaluate("scrollY") == scrolled


@pytest.mark.browser
def test_after_cleaning_up_nothing_moves(page: Any) -> None:
    before = weights(page)
    page.evaluate("cleanUp()")
    page.get_by_role("slider", name="query q").press("ArrowLeft")
    assert weights(page) == before
    assert page.evaluate("calls") == ["off"] * 6
