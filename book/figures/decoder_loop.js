// The decoder's loop: step through a text that is being written, with a cache and without one.
// The widget that starts it, and every word it shows, stand in decoder_loop.py.

// --- the mathematics: pure functions, compared with torch by tests ------------------------------

/** Row t of causal self-attention: the softmax over keys 0 … t, and 0 for those after it. */
export function maskedRow(scores, t) {
  const seen = scores[t].slice(0, t + 1);
  const largest = Math.max(...seen);
  const powers = seen.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return scores[t].map((_, s) => (s <= t ? powers[s] / sum : 0));
}

/** What one step (from 0) computes: positions through the layers, and query-key products. */
export function workNow(step, cached) {
  const queries = cached ? 1 : step + 1;
  return { positions: queries, scores: queries * (step + 1) };
}

/** The same, summed from the first step on. */
export function workSoFar(step, cached) {
  const total = { positions: 0, scores: 0 };
  for (let t = 0; t <= step; t += 1) {
    const now = workNow(t, cached);
    total.positions += now.positions;
    total.scores += now.scores;
  }
  return total;
}

/** Everything that Python computes too, for the figure's own test of itself. */
export function follow(scores) {
  const steps = [...scores.keys()];
  return {
    weights: steps.map((t) => maskedRow(scores, t)),
    cached: steps.map((t) => workSoFar(t, true)),
    whole: steps.map((t) => workSoFar(t, false)),
  };
}

/** Whether two nested lists or records of numbers agree to 1e-6, relative to those above 1. */
export function agree(ours, theirs) {
  if (typeof ours === "object") {
    const names = Object.keys(ours);
    return (
      names.length === Object.keys(theirs ?? {}).length &&
      names.every((name) => agree(ours[name], theirs[name]))
    );
  }
  return Math.abs(ours - theirs) <= 1e-6 * Math.max(1, Math.abs(theirs));
}

// --- common to all figures: begin (README.md; the same in every figure, a test compares) --------

const COMMON_STYLE = (() => {
  const light = `
    --fig-back: var(--pst-color-background, var(--jp-layout-color0, #ffffff));
    --fig-text: var(--pst-color-text-base, var(--jp-content-font-color1, #1f2328));
    --fig-muted: var(--pst-color-text-muted, var(--jp-content-font-color2, #48566b));
    --fig-line: var(--pst-color-border, var(--jp-border-color1, #d1d5da));
    --fig-surface: var(--pst-color-surface, var(--jp-layout-color2, #f3f4f5));
    --fig-edge: #6b7684; --fig-focus: #0a5fd6; --fig-plus: 26 134 224; --fig-minus: 214 69 11;
    --fig-1: #1a86e0; --fig-2: #d6450b; --fig-3: #00705f;
    --fig-4: #7a1466; --fig-5: #827c2f; --fig-6: #7d8c8c; color-scheme: light;`;
  const dark = `
    --fig-back: var(--pst-color-background, var(--jp-layout-color0, #14181e));
    --fig-text: var(--pst-color-text-base, var(--jp-content-font-color1, #ced6dd));
    --fig-muted: var(--pst-color-text-muted, var(--jp-content-font-color2, #a4adb8));
    --fig-line: var(--pst-color-border, var(--jp-border-color1, #48566b));
    --fig-surface: var(--pst-color-surface, var(--jp-layout-color2, #29313d));
    --fig-edge: #8b96a3; --fig-focus: #7cc4ff; --fig-plus: 74 143 220; --fig-minus: 217 116 31;
    --fig-1: #4a8fdc; --fig-2: #d9741f; --fig-3: #35dc8f;
    --fig-4: #f5aef2; --fig-5: #e8ee55; --fig-6: #a3a3a3; color-scheme: dark;`;
  // The system's wish first; then what the book's theme, JupyterLab or Colab says, either way.
  return `
  .fig { ${light} }
  @media (prefers-color-scheme: dark) { .fig { ${dark} } }
  html[data-theme="light"] .fig, body[data-jp-theme-light="true"] .fig,
  html[theme="light"] .fig { ${light} }
  html[data-theme="dark"] .fig, body[data-jp-theme-light="false"] .fig,
  html[theme="dark"] .fig { ${dark} }
  .fig, .fig * { box-sizing: border-box; }
  .fig { container-type: inline-size; background: var(--fig-back); color: var(--fig-text);
    font: 0.9rem/1.4 var(--pst-font-family-base, system-ui, sans-serif); text-align: start;
    padding: 0.25rem; }
  .fig p { margin: 0.25rem 0; font-size: 0.85rem; color: var(--fig-muted); }
  .fig-name { font-weight: 600; font-size: 0.9rem; margin: 0; padding: 0; text-align: start;
    color: var(--fig-text); caption-side: top; }
  .fig-number { font-variant-numeric: tabular-nums; white-space: nowrap; }
  .fig-controls { display: flex; flex-wrap: wrap; align-items: center; gap: 0.35rem 1.25rem;
    margin: 0; padding: 0.4rem 0.6rem; min-width: 0; border: 1px solid var(--fig-line);
    border-radius: 0.4rem; background: var(--fig-surface); }
  .fig-controls label { display: flex; align-items: center; gap: 0.5rem; min-height: 2rem;
    margin: 0; }
  .fig-controls input { margin: 0; accent-color: var(--fig-1); }
  .fig-controls input[type="checkbox"] { width: 1.15rem; height: 1.15rem; }
  .fig-controls input[type="range"] { width: 7.5rem; height: 2rem; }
  .fig-controls output { min-width: 2.6em; }
  .fig-controls button { min-height: 2rem; padding: 0 0.8rem; margin-inline-start: auto;
    font: inherit; color: var(--fig-text); background: var(--fig-back); cursor: pointer;
    border: 1px solid var(--fig-edge); border-radius: 0.4rem; }
  .fig :is(input, button):focus-visible { outline: 3px solid var(--fig-focus);
    outline-offset: 2px; }
  .fig svg { display: block; width: 100%; max-width: 26rem; margin: 0 auto; overflow: visible;
    user-select: none; -webkit-user-select: none; }
  .fig svg text { fill: var(--fig-text); font-size: 13px; paint-order: stroke;
    stroke: var(--fig-back); stroke-width: 4px; stroke-linejoin: round; }
  .fig-frame { fill: none; stroke: var(--fig-line); }
  .fig-grid { stroke: var(--fig-line); stroke-width: 0.5; }
  .fig-axis { stroke: var(--fig-edge); stroke-width: 1; }
  .fig svg text.fig-tick { fill: var(--fig-muted); font-size: 10px; }
  .fig-point { cursor: grab; outline: none; }
  .fig-point:active { cursor: grabbing; }
  .fig-point .fig-hit { fill: transparent; }
  .fig-point .fig-ring { fill: none; stroke: none; stroke-width: 3; }
  .fig-point:hover .fig-ring { stroke: var(--fig-line); }
  .fig-point:focus-visible .fig-ring { stroke: var(--fig-focus); }
  .fig table { border-collapse: collapse; width: 100%; margin: 0; font-size: inherit;
    color: inherit; display: table; }
  .fig :is(th, td) { padding: 0.2rem 0.35rem; border: 0; background: none; color: inherit;
    text-align: end; vertical-align: middle; font-weight: normal; }
  .fig thead :is(th, td) { border-bottom: 1px solid var(--fig-edge); color: var(--fig-muted);
    font-size: 0.8rem; white-space: nowrap; }
  .fig-bar { display: block; height: 0.75rem; border-radius: 2px; background: var(--fig-surface);
    outline: 1px solid var(--fig-line); overflow: hidden; }
  .fig-bar > span { display: block; height: 100%; width: 0; transition: width 0.08s linear; }
  .fig-unseen { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); white-space: nowrap; }
  @media (prefers-reduced-motion: reduce) { .fig-bar > span { transition: none; } }`;
})();

/** Outlines of radius about 8, one for each index: told apart without colour. */
const MARKS = [
  "M8 0A8 8 0 1 1 -8 0A8 8 0 1 1 8 0Z", // disc
  "M-7 -7H7V7H-7Z", // square
  "M0 -9.5L8.8 6.5H-8.8Z", // triangle
  "M0 -10L10 0L0 10L-10 0Z", // diamond
  "M-3 -9H3V-3H9V3H3V9H-3V3H-9V-3H-3Z", // cross
  "M0 9.5L8.8 -6.5H-8.8Z", // triangle on its tip
];

/** An element with attributes and children: `make("p", { class: "fig-name" }, "words")`. */
function make(tag, attributes = {}, ...children) {
  const svgTags = ["svg", "g", "path", "line", "circle", "rect", "polygon", "text"];
  const element = svgTags.includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  set(element, attributes);
  element.append(...children);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

/** A sentence with its gaps filled: `fill("x {x}", { x: 1 })`. */
function fill(sentence, gaps) {
  return sentence.replace(/\{(\w+)\}/g, (gap, name) => gaps[name] ?? gap);
}

/** A number with so many decimals and a true minus sign. */
function say(number, digits = 2) {
  const fixed = number.toFixed(digits);
  return (Number(fixed) === 0 ? fixed.replace("-", "") : fixed).replace("-", "−");
}

/** The same for numbers that may be tiny: as a power of ten, where decimals would show 0.000. */
function sayTiny(number, digits, sentence = "{number}·10{superscript}") {
  if (number === 0 || Math.abs(number) >= 10 ** -digits) return say(number, digits);
  const [digit, power] = number.toExponential(0).replace("-", "−").replace("e-", "e−").split("e");
  const superscript = [...power].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["−0123456789".indexOf(c)]).join("");
  return fill(sentence, { number: digit, power, superscript });
}

/** A square plane from -limit to limit: grid, axes, and the way from numbers to pixels and back. */
function makePlane(limit, label) {
  const half = 160;
  const unit = 150 / limit;
  const box = `${-half} ${-half} ${2 * half} ${2 * half}`;
  const svg = make("svg", { viewBox: box, role: "group", "aria-label": label });
  for (let at = -Math.floor(limit); at <= limit; at += 1) {
    const kind = at === 0 ? "fig-axis" : "fig-grid";
    const across = { x1: -150, x2: 150, y1: -at * unit, y2: -at * unit, class: kind };
    const along = { x1: at * unit, x2: at * unit, y1: -150, y2: 150, class: kind };
    svg.append(make("line", across), make("line", along));
    if (at === 0) continue;
    const tick = { class: "fig-tick", "aria-hidden": "true" };
    svg.append(make("text", { ...tick, x: at * unit, y: 12, "text-anchor": "middle" }, say(at, 0)));
    svg.append(
      make("text", { ...tick, x: -5, y: -at * unit + 3, "text-anchor": "end" }, say(at, 0)),
    );
  }
  svg.append(make("rect", { x: -150, y: -150, width: 300, height: 300, class: "fig-frame" }));
  const toPixels = ([x, y]) => [x * unit, -y * unit];
  const points = []; // of makePoint
  const fromPointer = (event) => {
    const seen = svg.getBoundingClientRect();
    return [
      (((event.clientX - seen.left) / seen.width) * 2 * half - half) / unit,
      -(((event.clientY - seen.top) / seen.height) * 2 * half - half) / unit,
    ];
  };
  // Where points lie over one another the nearest is taken, and of two as near the first made.
  const nearest = (event) => {
    const [x, y] = fromPointer(event);
    const distances = points.map(({ get }) => Math.hypot(get()[0] - x, get()[1] - y));
    return points[distances.indexOf(Math.min(...distances))];
  };
  return { svg, toPixels, fromPointer, points, nearest };
}

/**
 * A point that mouse, pen, finger and keyboard can move. For a screen reader it is a slider whose
 * value is read as both coordinates: of the roles that take arrow keys it comes closest.
 */
function makePoint({ plane, limit, label, roleText, valueText, get, move, done, signal }) {
  const group = make(
    "g",
    {
      class: "fig-point",
      tabindex: "0",
      role: "slider",
      "aria-label": label,
      "aria-roledescription": roleText,
      "aria-valuemin": -limit,
      "aria-valuemax": limit,
    },
    make("circle", { class: "fig-hit", r: 21 }),
    make("circle", { class: "fig-ring", r: 15 }),
  );
  const go = (point) =>
    move(point.map((c) => Math.round(Math.min(limit, Math.max(-limit, c)) * 100) / 100));
  let grip = null; // from the pointer to the point, so that the point does not jump under it
  const take = (event) => {
    group.focus({ preventScroll: true });
    group.setPointerCapture(event.pointerId);
    const at = plane.fromPointer(event);
    grip = get().map((c, axis) => c - at[axis]);
  };
  plane.points.push({ get, take });
  group.addEventListener(
    "pointerdown",
    (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      plane.nearest(event).take(event);
    },
    { signal },
  );
  // A finger on a point moves it, and does not scroll the page; Chromium does not heed
  // `touch-action` inside an SVG.
  group.addEventListener("touchstart", (event) => event.preventDefault(), {
    passive: false,
    signal,
  });
  group.addEventListener(
    "pointermove",
    (event) => {
      if (grip) go(plane.fromPointer(event).map((c, axis) => c + grip[axis]));
    },
    { signal },
  );
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    group.addEventListener(
      end,
      () => {
        if (grip) done();
        grip = null;
      },
      { signal },
    );
  }
  group.addEventListener(
    "keydown",
    (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[
        event.key
      ];
      if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      go(get().map((c, axis) => c + way[axis] * (event.shiftKey ? 0.5 : 0.1)));
      done();
    },
    { signal },
  );
  const show = () => {
    const [x, y] = get();
    const [left, top] = plane.toPixels([x, y]);
    set(group, {
      transform: `translate(${left} ${top})`,
      "aria-valuenow": x,
      "aria-valuetext": fill(valueText, { x: say(x), y: say(y) }),
    });
  };
  return { group, show };
}

/** The figure's frame: a section with the common style; keys pressed in it are the figure's own. */
function makeFigure(el, label, style) {
  const root = make("section", {
    class: "fig",
    "aria-label": label,
    "data-lm-suppress-shortcuts": "true", // JupyterLab's shortcuts would take the arrow keys
  });
  el.append(make("style", {}, COMMON_STYLE + style), root);
  return root;
}

/** Says a sentence to screen readers once the reader has stopped moving things. */
function makeVoice(root) {
  const region = make("p", { class: "fig-unseen", role: "status", "aria-live": "polite" });
  root.append(region);
  let waiting = 0;
  const speak = (sentence) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => (region.textContent = sentence), 700);
  };
  return { speak, silence: () => clearTimeout(waiting) };
}

// --- common to all figures: end -----------------------------------------------------------------

// --- the drawing ----------------------------------------------------------------------------------

const STYLE = `
  .fig-loop { display: grid; gap: 0.75rem 1.5rem; margin-top: 0.6rem;
    grid-template-columns: minmax(0, 1fr); }
  @container (min-width: 40rem) {
    .fig-loop { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); } }
  .fig-loop > div { display: grid; gap: 0.75rem; align-content: start; }
  .fig-loop-words { display: flex; flex-wrap: wrap; gap: 0.3rem; margin: 0.15rem 0; }
  .fig-loop-words span { padding: 0.1rem 0.5rem; border: 1px solid var(--fig-edge);
    border-radius: 0.3rem; }
  .fig-loop-words .fig-loop-old { background: var(--fig-surface); border-style: dotted; }
  .fig-loop-words .fig-loop-new { border-width: 2px; font-weight: 600; }
  .fig-loop-words .fig-loop-out { border-style: dashed; font-weight: 600; }
  .fig .fig-loop-grid { table-layout: fixed; }
  .fig .fig-loop-grid :is(th, td) { text-align: center; padding: 0.15rem 0.05rem;
    font-size: 0.75rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
  .fig .fig-loop-grid tbody th { text-align: start; }
  .fig .fig-loop-grid :is(th, td):first-child { width: 4.6rem; }
  .fig .fig-loop-grid tbody td { border: 1px solid var(--fig-line); height: 1.7rem; }
  .fig .fig-loop-grid td.fig-loop-now { border: 2px solid var(--fig-edge); }
  .fig .fig-loop-grid td.fig-loop-old { color: var(--fig-muted); }
  .fig .fig-loop-grid td.fig-loop-no { color: var(--fig-muted); background: var(--fig-surface); }
  .fig .fig-loop-grid th.fig-loop-kept { background: var(--fig-surface);
    color: var(--fig-text); border-bottom: 3px double var(--fig-edge); }
  .fig-loop-bars { display: grid; grid-template-columns: minmax(3.5rem, auto) 1fr auto;
    gap: 0.2rem 0.5rem; align-items: center; margin: 0.15rem 0; }
  .fig-loop-bars .fig-loop-word { overflow: hidden; text-overflow: ellipsis;
    white-space: nowrap; }
  .fig-loop-work th { text-align: start; }
  .fig .fig-loop-work thead :is(th, td):not(:first-child) { text-align: end; }
  .fig-loop-work .fig-loop-chosen { font-weight: 700; text-decoration: underline; }
`;

const STATE = ["step", "cached"];

function render({ model, el }) {
  const text = model.get("text");
  const initial = model.get("initial");
  const source = model.get("source");
  const words = model.get("words");
  const scores = model.get("scores");
  const memoryWeights = model.get("memory_weights");
  const candidates = model.get("candidates");
  const steps = words.length - 1;
  const indices = [...Array(steps).keys()];
  const stop = new AbortController();
  const { signal } = stop;
  let state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));

  const root = makeFigure(el, text.figure, STYLE);
  const voice = makeVoice(root);

  // -- controls
  const back = make("button", { type: "button" }, text.back);
  const next = make("button", { type: "button", style: "margin-inline-start:0" }, text.next);
  const slider = make("input", { type: "range", name: "step", min: 1, max: steps, step: 1 });
  const stepNumber = make("output", { class: "fig-number", "aria-hidden": "true" });
  const cacheBox = make("input", { type: "checkbox", name: "cached" });
  const controls = make(
    "div",
    { class: "fig-controls", role: "group", "aria-label": text.settings },
    make("label", {}, text.step, slider, stepNumber),
    make("label", {}, cacheBox, text.cached),
    back,
    next,
  );

  // -- the words
  const chip = (word, kind = "") => make("span", kind ? { class: kind } : {}, word);
  const readLine = make("div", { class: "fig-loop-words fig-loop-read" });
  const writtenLine = make("div", { class: "fig-loop-words fig-loop-written" });
  const named = (words_, ...more) =>
    make("div", {}, make("div", { class: "fig-name" }, words_), ...more);

  // -- the mask
  const heads = indices.map((s) => make("th", { scope: "col", title: words[s] }, words[s]));
  const cells = indices.map(() => indices.map(() => make("td", { class: "fig-number" })));
  const rows = indices.map((t) =>
    make("tr", {}, make("th", { scope: "row", title: words[t] }, words[t]), ...cells[t]),
  );
  const grid = make(
    "table",
    { class: "fig-loop-grid" },
    make("caption", { class: "fig-name" }, text.mask),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, text.mask_corner), ...heads)),
    make("tbody", {}, ...rows),
  );
  const gridNote = make("p");

  // -- bars
  const makeBars = (colour) => {
    const box = make("div", { class: "fig-loop-bars" });
    const show = (pairs) =>
      box.replaceChildren(
        ...pairs.flatMap(([word, share]) => [
          make("span", { class: "fig-loop-word" }, word),
          make(
            "span",
            { class: "fig-bar", "aria-hidden": "true" },
            make("span", { style: `background:var(${colour});width:${100 * share}%` }),
          ),
          make("span", { class: "fig-number" }, sayTiny(share, 2)),
        ]),
      );
    return { box, show };
  };
  const crossBars = makeBars("--fig-3");
  const candidateBars = makeBars("--fig-1");

  // -- the work
  const line = (words_) => {
    const withCache = make("td", { class: "fig-number" });
    const without = make("td", { class: "fig-number" });
    const row = make("tr", {}, make("th", { scope: "row" }, words_), withCache, without);
    return { row, cached: withCache, whole: without };
  };
  const lines = {
    positionsNow: line(text.positions_now),
    positionsAll: line(text.positions_all),
    scoresNow: line(text.scores_now),
    scoresAll: line(text.scores_all),
    kept: line(text.kept),
  };
  const work = make(
    "table",
    { class: "fig-loop-work" },
    make("caption", { class: "fig-name" }, text.work),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("th", { scope: "col" }, text.work_column),
        make("th", { scope: "col" }, text.with_column),
        make("th", { scope: "col" }, text.without_column),
      ),
    ),
    make("tbody", {}, ...Object.values(lines).map(({ row }) => row)),
  );
  const verdict = make("p", { class: "fig-loop-verdict" });

  root.append(
    make("p", {}, text.how),
    controls,
    make(
      "div",
      { class: "fig-loop" },
      make(
        "div",
        {},
        named(
          text.source_line,
          make("div", { class: "fig-loop-words" }, ...source.map((w) => chip(w))),
        ),
        named(text.target_line, readLine),
        make("div", {}, grid, make("p", {}, text.legend), gridNote),
      ),
      make(
        "div",
        {},
        named(text.cross, crossBars.box),
        named(text.candidates, candidateBars.box),
        named(text.written, writtenLine),
        work,
      ),
    ),
    verdict,
  );

  function draw() {
    const { step, cached } = state;
    slider.value = step + 1;
    slider.setAttribute("aria-valuetext", `${step + 1} / ${steps}`);
    stepNumber.textContent = `${step + 1} / ${steps}`;
    cacheBox.checked = cached;
    back.disabled = step === 0;
    next.disabled = step === steps - 1;

    readLine.replaceChildren(
      ...words
        .slice(0, step + 1)
        .map((word, t) => chip(word, t === step ? "fig-loop-new" : cached ? "fig-loop-old" : "")),
    );
    writtenLine.replaceChildren(chip(words[step + 1], "fig-loop-out"));
    heads.forEach((head, s) => head.classList.toggle("fig-loop-kept", cached && s < step));
    indices.forEach((t) => {
      const computed = t === step || (!cached && t < step);
      const weights = computed ? maskedRow(scores, t) : [];
      indices.forEach((s) => {
        const cell = cells[t][s];
        const there = t <= step && s <= step;
        cell.className = "fig-number";
        cell.style.background = "";
        cell.removeAttribute("aria-label");
        if (!there) {
          cell.textContent = "";
          cell.setAttribute("aria-label", text.later);
        } else if (s > t) {
          cell.textContent = "×";
          cell.classList.add("fig-loop-no");
          cell.setAttribute("aria-label", text.hidden);
        } else if (computed) {
          cell.textContent = say(weights[s]);
          cell.classList.add("fig-loop-now");
          cell.style.background = `rgb(var(--fig-plus) / ${0.45 * weights[s]})`;
        } else {
          cell.textContent = "✓";
          cell.classList.add("fig-loop-old");
          cell.setAttribute("aria-label", text.seen);
        }
      });
    });
    gridNote.textContent = cached ? text.mask_note_cached : text.mask_note_whole;
    crossBars.show(source.map((word, s) => [word, memoryWeights[step][s]]));
    candidateBars.show(candidates[step]);

    for (const [kind, keeps] of [
      ["cached", true],
      ["whole", false],
    ]) {
      const now = workNow(step, keeps);
      const all = workSoFar(step, keeps);
      lines.positionsNow[kind].textContent = now.positions;
      lines.positionsAll[kind].textContent = all.positions;
      lines.scoresNow[kind].textContent = now.scores;
      lines.scoresAll[kind].textContent = all.scores;
      lines.kept[kind].textContent = keeps ? step + 1 : 0;
      for (const made of Object.values(lines)) {
        made[kind].classList.toggle("fig-loop-chosen", keeps === cached);
      }
    }
  }

  function spoken() {
    const { step, cached } = state;
    return fill(text.spoken, {
      step: step + 1,
      steps,
      n: step + 1,
      word: words[step + 1],
      now: workNow(step, cached).positions,
      all: workSoFar(step, cached).positions,
    });
  }

  // -- what the reader does
  const write = (change) => {
    state = { ...state, ...change };
    for (const [trait, value] of Object.entries(change)) model.set(trait, value);
    draw();
    voice.speak(spoken());
  };
  const save = () => model.save_changes();
  const on = (element, kind, act) => element.addEventListener(kind, act, { signal });
  const go = (step) => write({ step: Math.min(steps - 1, Math.max(0, step)) });
  on(back, "click", () => {
    go(state.step - 1);
    save();
  });
  on(next, "click", () => {
    go(state.step + 1);
    save();
  });
  on(slider, "input", () => go(Number(slider.value) - 1));
  on(slider, "change", save);
  on(cacheBox, "change", () => {
    write({ cached: cacheBox.checked });
    save();
  });

  // -- what Python does; the events that our own model.set raises change nothing
  const follows = () => {
    state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));
    draw();
  };
  for (const trait of STATE) model.on(`change:${trait}`, follows);

  // -- the figure checks itself: its numbers against those from Python
  const right = agree(follow(scores), initial);
  verdict.textContent = right ? text.agrees : text.differs;
  if (!right) console.error(text.differs);

  draw();
  return () => {
    stop.abort();
    voice.silence();
    for (const trait of STATE) model.off(`change:${trait}`, follows);
  };
}

export default { render };
