// Rotary positions as clocks: move a query and a key along the text, and watch hands and score.
// The widget that starts it, and every word it shows, stand in position_clock.py.

// --- the mathematics: pure functions, compared with torch by tests/test_figure_position_clock.py -

/** Radians per position of each pair. */
export function frequencies(d, base) {
  return Array.from({ length: d / 2 }, (_, i) => base ** ((-2 * i) / d));
}

/** A vector turned to a position: component i is paired with component i + d/2. */
export function turn(x, position, base) {
  const half = x.length / 2;
  const turned = [...x];
  frequencies(x.length, base).forEach((frequency, i) => {
    const angle = position * frequency;
    turned[i] = x[i] * Math.cos(angle) - x[i + half] * Math.sin(angle);
    turned[i + half] = x[i] * Math.sin(angle) + x[i + half] * Math.cos(angle);
  });
  return turned;
}

/** The scaled dot product of a query at t and a key at s. */
export function score(q, k, t, s, base) {
  const query = turn(q, t, base);
  const key = turn(k, s, base);
  return query.reduce((sum, x, i) => sum + x * key[i], 0) / Math.sqrt(q.length);
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

// --- the drawing --------------------------------------------------------------------------------

const STYLE = `
  .clock { display: grid; gap: 0.75rem; }
  .clock-faces { display: grid; gap: 0.5rem; grid-template-columns: repeat(2, 1fr); }
  @container (min-width: 36rem) { .clock-faces { grid-template-columns: repeat(4, 1fr); } }
  .clock-faces figure { margin: 0; text-align: center; }
  .clock-faces figcaption { font-size: 0.8rem; color: var(--fig-muted); }
  .clock svg.clock-curve { max-width: 40rem; }
  .clock-line { fill: none; stroke: var(--fig-1); stroke-width: 2; }
  .clock-now { stroke: var(--fig-text); stroke-dasharray: 3 3; }`;

function render({ model, el }) {
  const text = model.get("text");
  const initial = model.get("initial");
  const q = model.get("q");
  const k = model.get("k");
  const bases = model.get("bases");
  const longest = model.get("longest");
  const stop = new AbortController();
  const { signal } = stop;
  const root = makeFigure(el, text.figure, STYLE);
  const voice = makeVoice(root);
  const state = { t: model.get("t"), s: model.get("s"), base: model.get("base") };
  const half = q.length / 2;

  const body = make("div", { class: "clock" });
  root.prepend(body);
  body.append(make("p", {}, text.how));

  const controls = make("fieldset", { class: "fig-controls", "aria-label": text.settings });
  const slider = (label, max, change) => {
    const input = make("input", { type: "range", min: 0, max, step: 1 });
    const shown = make("output", { class: "fig-number" });
    input.addEventListener("input", () => { change(Number(input.value)); update(); }, { signal });
    input.addEventListener("change", save, { signal });
    controls.append(make("label", {}, label, input, shown));
    return { input, shown };
  };
  const query = slider(text.query, longest - 1, (value) => (state.t = value));
  const key = slider(text.key, longest - 1, (value) => (state.s = value));
  // Both move by as much as the later one can: the distance stays.
  const both = slider(text.together, longest - 1, (value) => {
    const distance = state.t - state.s;
    const first = Math.min(value, longest - 1 - Math.abs(distance));
    state.s = distance < 0 ? first - distance : first;
    state.t = state.s + distance;
  });
  const base = slider(text.base, bases.length - 1, (value) => (state.base = bases[value]));
  const reset = make("button", { type: "button" }, text.reset);
  reset.addEventListener("click", () => {
    Object.assign(state, { t: initial.t, s: initial.s, base: initial.base });
    update();
    save();
  }, { signal });
  controls.append(reset);
  body.append(controls);

  // One face a pair. Lengths are those of the pair; the longest hand of all reaches the rim.
  const length = (x, i) => Math.hypot(x[i], x[i + half]);
  const reach = Math.max(...[q, k].flatMap((x) => Array.from({ length: half }, (_, i) => length(x, i))));
  const faces = make("div", { class: "clock-faces" });
  const hands = Array.from({ length: half }, (_, i) => {
    const svg = make("svg", { viewBox: "-60 -60 120 120", role: "img" });
    svg.append(
      make("circle", { r: 52, class: "fig-frame" }),
      make("line", { x1: -52, x2: 52, y1: 0, y2: 0, class: "fig-grid" }),
      make("line", { y1: -52, y2: 52, x1: 0, x2: 0, class: "fig-grid" }),
    );
    const hand = (colour, mark) => {
      const line = make("line", { x1: 0, y1: 0, stroke: colour, "stroke-width": 3 });
      const tip = make("path", { d: MARKS[mark], fill: colour });
      svg.append(line, tip);
      return (x, y) => {
        const [left, top] = [(x / reach) * 50, (-y / reach) * 50];
        set(line, { x2: left, y2: top });
        set(tip, { transform: `translate(${left} ${top}) scale(0.7)` });
      };
    };
    const keyHand = hand("var(--fig-2)", 1);
    const queryHand = hand("var(--fig-text)", 0);
    const caption = make("figcaption");
    faces.append(make("figure", {}, svg, caption));
    return { svg, keyHand, queryHand, caption };
  });
  body.append(faces, make("p", {}, text.legend));

  // The curve of scores against distance: the same wherever the two stand.
  const curve = make("svg", { class: "clock-curve", viewBox: "0 0 640 190", role: "img" });
  const line = make("path", { class: "clock-line" });
  const now = make("line", { class: "clock-now", y1: 14, y2: 160 });
  const point = make("path", { d: MARKS[0], fill: "var(--fig-text)" });
  curve.append(
    make("line", { x1: 30, x2: 630, y1: 87, y2: 87, class: "fig-axis" }),
    make("line", { x1: 330, x2: 330, y1: 14, y2: 160, class: "fig-grid" }),
    line, now, point,
  );
  for (const at of [-60, -40, -20, 0, 20, 40, 60]) {
    curve.append(make("text",
      { class: "fig-tick", x: 330 + at * (300 / longest), y: 174, "text-anchor": "middle" },
      say(at, 0)));
  }
  curve.append(make("text", { x: 330, y: 188, "text-anchor": "middle", class: "fig-tick" },
    text.distance));
  const reading = make("p", { class: "fig-number" });
  body.append(make("p", { class: "fig-name" }, text.curve), curve, reading, make("p", {}, text.note));
  const ours = score(q, k, initial.t, initial.s, initial.base);
  const agrees = Math.abs(ours - initial.score) <= 1e-9;
  body.append(make("p", {}, agrees ? text.agrees : text.differs));

  function save() {
    for (const name of ["t", "s", "base"]) model.set(name, state[name]);
    model.save_changes();
  }

  function update(spoken = true) {
    const { t, s } = state;
    query.input.value = query.shown.textContent = t;
    key.input.value = key.shown.textContent = s;
    both.input.value = both.shown.textContent = Math.min(t, s);
    base.input.value = bases.indexOf(state.base);
    base.shown.textContent = state.base;
    const turnedQuery = turn(q, t, state.base);
    const turnedKey = turn(k, s, state.base);
    const speed = frequencies(q.length, state.base);
    hands.forEach(({ svg, keyHand, queryHand, caption }, i) => {
      queryHand(turnedQuery[i], turnedQuery[i + half]);
      keyHand(turnedKey[i], turnedKey[i + half]);
      const degrees = (x) => String(Math.round((Math.atan2(x[i + half], x[i]) * 180) / Math.PI));
      const angle = sayTiny(speed[i], 3);
      caption.textContent = fill(text.pair, {
        i: i + 1, angle: fill(text.radians, { number: angle }),
      });
      set(svg, { "aria-label": fill(text.pair_label, {
        i: i + 1, query: degrees(turnedQuery), key: degrees(turnedKey), angle,
      }) });
    });
    const distances = Array.from({ length: 2 * longest - 1 }, (_, i) => i - longest + 1);
    const scores = distances.map((distance) => score(q, k, distance, 0, state.base));
    const top = Math.max(...scores.map(Math.abs));
    const place = (distance, value) => [330 + distance * (300 / longest), 87 - (value / top) * 70];
    set(line, { d: `M${distances.map((distance, i) => place(distance, scores[i]).join(" ")).join("L")}` });
    const present = score(q, k, t, s, state.base);
    const [x, y] = place(t - s, present);
    set(now, { x1: x, x2: x });
    set(point, { transform: `translate(${x} ${y})` });
    reading.textContent = fill(text.now, { distance: say(t - s, 0), score: say(present, 3) });
    set(curve, { "aria-label": `${text.curve}. ${reading.textContent}` });
    if (spoken) {
      voice.speak(fill(text.spoken, {
        t, s, distance: say(t - s, 0), score: say(present, 3),
      }));
    }
  }

  const follow = () => {
    for (const name of ["t", "s", "base"]) state[name] = model.get(name);
    update(false);
  };
  for (const name of ["t", "s", "base"]) model.on(`change:${name}`, follow);
  update(false);
  return () => {
    stop.abort();
    voice.silence();
    for (const name of ["t", "s", "base"]) model.off(`change:${name}`, follow);
  };
}

export default { render };
