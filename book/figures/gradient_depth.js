// Gradients through depth: switch residuals and norms on and off, add layers, and see what arrives.
// The widget that starts it, and every word it shows, stand in gradient_depth.py.

// --- the mathematics: pure functions, compared with torch by tests/test_figure_gradient_depth.py ---
// Matrices are arrays of rows. One head of attention and a feed-forward network make a layer.

export const SIZES = { T: 6, D: 16, F: 32 };

/** Uniform numbers in [0, 1): mulberry32, a generator of 32 bits that Python can follow. */
export function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A matrix of independent normal numbers (Box and Muller 1958): rows times columns. */
function normal(draw, rows, columns, deviation) {
  const one = () => {
    const radius = Math.sqrt(-2 * Math.log(1 - draw()));
    return deviation * radius * Math.cos(2 * Math.PI * draw());
  };
  return Array.from({ length: rows }, () => Array.from({ length: columns }, one));
}

/** The weights of `depth` layers with all biases zero; each layer is the same at every depth. */
export function weights(depth, gain, seed) {
  const { T, D, F } = SIZES;
  const draw = uniform(seed);
  const x = normal(draw, T, D, 1);
  const cotangent = normal(draw, T, D, 1);
  const layers = Array.from({ length: depth }, () => {
    const layer = {};
    for (const name of ["query", "key", "value", "output"]) {
      layer[name] = normal(draw, D, D, gain / Math.sqrt(D));
    }
    layer.up = normal(draw, F, D, gain / Math.sqrt(D));
    layer.down = normal(draw, D, F, gain / Math.sqrt(F));
    return layer;
  });
  return { x, cotangent, layers };
}

const transpose = (a) => a[0].map((_, j) => a.map((row) => row[j]));
const dot = (a, b) => a.reduce((sum, item, i) => sum + item * b[i], 0);
const add = (a, b) => a.map((row, i) => row.map((item, j) => item + b[i][j]));
/** a times b transposed: what nn.Linear does with its weight b. */
const linear = (a, b) => a.map((row) => b.map((other) => dot(row, other)));
const multiply = (a, b) => linear(a, transpose(b));

// Each step gives its value and a function that takes a gradient back through it.

function norm(x) {
  const rows = x.map((row) => {
    const mean = row.reduce((sum, item) => sum + item, 0) / row.length;
    const centred = row.map((item) => item - mean);
    const scale = 1 / Math.sqrt(dot(centred, centred) / row.length + 1e-5);
    return { scale, value: centred.map((item) => item * scale) };
  });
  const back = (gradient) =>
    gradient.map((g, i) => {
      const { scale, value } = rows[i];
      const mean = g.reduce((sum, item) => sum + item, 0) / g.length;
      const along = dot(g, value) / g.length;
      return g.map((item, j) => scale * (item - mean - value[j] * along));
    });
  return { value: rows.map((row) => row.value), back };
}

function attention(x, { query, key, value, output }) {
  const root = Math.sqrt(x[0].length);
  const [q, k, v] = [query, key, value].map((weight) => linear(x, weight));
  const shares = linear(q, k).map((row) => {
    const largest = Math.max(...row);
    const powers = row.map((score) => Math.exp((score - largest) / root));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power) => power / sum);
  });
  const back = (gradient) => {
    const mixed = multiply(gradient, output);
    const toShares = linear(mixed, v);
    // share · (own - mean) summed by differences: at a share of 1 they cancel to 0 exactly.
    const toScores = shares.map((row, i) =>
      row.map((share, j) =>
        (share / root) *
        row.reduce((sum, other, o) => sum + other * (toShares[i][j] - toShares[i][o]), 0),
      ),
    );
    const toQ = multiply(toScores, k);
    const toK = multiply(transpose(toScores), q);
    const toV = multiply(transpose(shares), mixed);
    return add(multiply(toQ, query), add(multiply(toK, key), multiply(toV, value)));
  };
  return { value: linear(multiply(shares, v), output), back };
}

function feedForward(x, { up, down }) {
  const hidden = linear(x, up);
  const back = (gradient) =>
    multiply(
      multiply(gradient, down).map((row, i) => row.map((g, j) => (hidden[i][j] > 0 ? g : 0))),
      up,
    );
  return { value: linear(hidden.map((row) => row.map((h) => Math.max(0, h))), down), back };
}

/** One sub-layer with its residual and its norm, as the settings say. */
function surround(x, sublayer, { residual, placement }) {
  const before = placement === "pre" ? norm(x) : null;
  const branch = sublayer(before ? before.value : x);
  const sum = residual ? add(x, branch.value) : branch.value;
  const after = placement === "post" ? norm(sum) : null;
  const back = (gradient) => {
    const toSum = after ? after.back(gradient) : gradient;
    const toBranch = branch.back(toSum);
    const toX = before ? before.back(toBranch) : toBranch;
    return residual ? add(toSum, toX) : toX;
  };
  return { value: after ? after.value : sum, back };
}

const length = (a) => Math.sqrt(a.reduce((sum, row) => sum + dot(row, row), 0));

/** Mean cosine between two different positions: 1 where all of them point the same way. */
function likeness(x) {
  const unit = x.map((row) => row.map((item) => item / (Math.sqrt(dot(row, row)) || 1)));
  const table = linear(unit, unit);
  const pairs = table.flatMap((row, i) => row.filter((_, j) => j !== i));
  return pairs.reduce((sum, item) => sum + item, 0) / pairs.length;
}

/**
 * The whole pass, there and back. For the input of each layer and the output of the last:
 * the gradient as a share of that at the output, the root mean square, the likeness of positions.
 */
export function pass({ residual, placement, depth, gain, seed }) {
  const { x, cotangent, layers } = weights(depth, gain, seed);
  const states = [x];
  const backs = [];
  for (const layer of layers) {
    const settings = { residual, placement };
    const first = surround(states.at(-1), (h) => attention(h, layer), settings);
    const second = surround(first.value, (h) => feedForward(h, layer), settings);
    states.push(second.value);
    backs.push((gradient) => first.back(second.back(gradient)));
  }
  // The last norm belongs to pre-norm; its own scale is not the depth's doing.
  let gradient = placement === "pre" ? norm(states.at(-1)).back(cotangent) : cotangent;
  const sizes = [length(gradient)];
  for (const back of backs.reverse()) {
    gradient = back(gradient);
    sizes.unshift(length(gradient));
  }
  const last = sizes.at(-1);
  return {
    gradients: sizes.map((size) => size / last),
    sizes: states.map((state) => length(state) / Math.sqrt(x.length * x[0].length)),
    likeness: states.map(likeness),
  };
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
  .depth { display: grid; gap: 0.75rem; }
  .depth svg.depth-plot { max-width: 42rem; }
  .depth-line { fill: none; stroke-width: 2.5; }
  .depth-gradient { stroke: var(--fig-1); }
  .depth-size { stroke: var(--fig-2); stroke-dasharray: 7 4; }
  .depth-even { stroke: var(--fig-edge); stroke-dasharray: 2 4; }
  @container (max-width: 28rem) {
    .fig .depth svg text.fig-tick { font-size: 19px; }
    .depth-line { stroke-width: 4; }
  }
  .depth table { max-width: 30rem; }
  .fig .depth td { text-align: end; }
  .fig .depth th { text-align: start; font-weight: normal; }`;

const STATE = ["residual", "placement", "depth", "gain"];
const FLOOR = 1e-20; // what is smaller is drawn here

/** A number of any size: two decimals, or the nearest power of ten. */
function sayAny(number) {
  if (!Number.isFinite(number)) return "∞";
  if (number === 0 || (number >= 0.01 && number < 1000)) return say(number, 2);
  return `10${raised(Math.round(Math.log10(number)))}`;
}

/** A whole number as an exponent. */
function raised(power) {
  return [...String(power)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
}

function render({ model, el }) {
  const text = model.get("text");
  const initial = model.get("initial");
  const deepest = model.get("deepest");
  const seed = model.get("seed");
  const gains = model.get("gains");
  const stop = new AbortController();
  const { signal } = stop;
  const root = makeFigure(el, text.figure, STYLE);
  const voice = makeVoice(root);
  const state = Object.fromEntries(STATE.map((name) => [name, model.get(name)]));

  const body = make("div", { class: "depth" });
  root.prepend(body);
  body.append(make("p", {}, text.how));

  const controls = make("fieldset", { class: "fig-controls", "aria-label": text.settings });
  const on = (input, kind, change) => {
    input.addEventListener(kind, () => { change(); update(); }, { signal });
    input.addEventListener("change", save, { signal });
    return input;
  };
  const box = make("input", { type: "checkbox" });
  on(box, "change", () => (state.residual = box.checked));
  controls.append(make("label", {}, box, text.residual));
  const group = `depth-${Math.random().toString(36).slice(2)}`; // two figures, two groups
  const choices = make("div", {
    role: "radiogroup", "aria-label": text.norm, style: "display:flex;flex-wrap:wrap;gap:0 1rem",
  });
  const radios = ["none", "pre", "post"].map((placement) => {
    const radio = make("input", { type: "radio", name: group, value: placement });
    on(radio, "change", () => (state.placement = placement));
    choices.append(make("label", {}, radio, text[placement]));
    return radio;
  });
  controls.append(choices);
  const slider = (label, min, max, step, name, read, write) => {
    const input = make("input", { type: "range", min, max, step });
    const shown = make("output", { class: "fig-number" });
    on(input, "input", () => (state[name] = read(Number(input.value))));
    controls.append(make("label", {}, label, input, shown));
    return () => {
      input.value = write(state[name]);
      shown.textContent = name === "gain" ? say(state.gain, 1) : String(state[name]);
    };
  };
  const showDepth = slider(text.depth, 1, deepest, 1, "depth", (x) => x, (x) => x);
  const showGain = slider(
    text.gain, 0, gains.length - 1, 1, "gain", (i) => gains[i], (gain) => gains.indexOf(gain),
  );
  const reset = make("button", { type: "button" }, text.reset);
  reset.addEventListener("click", () => {
    for (const name of STATE) state[name] = initial[name];
    update();
    save();
  }, { signal });
  controls.append(reset);
  body.append(controls);

  // -- the plot: a logarithmic axis of what there is, layers from left to right
  const [left, right, top, bottom] = [58, 628, 14, 232];
  const plot = make("svg", { class: "depth-plot", viewBox: "0 0 640 285", role: "img" });
  const grid = make("g", { "aria-hidden": "true" });
  const even = make("line", { class: "depth-even", x1: left, x2: right });
  const size = make("path", { class: "depth-line depth-size" });
  const gradient = make("path", { class: "depth-line depth-gradient" });
  const dot1 = make("path", { d: MARKS[0], fill: "var(--fig-1)" });
  const dot2 = make("path", { d: MARKS[1], fill: "var(--fig-2)" });
  plot.append(
    grid, even, size, gradient, dot1, dot2,
    make("text", {
      x: (left + right) / 2, y: 280, "text-anchor": "middle", class: "fig-tick",
    }, text.layer),
  );

  // -- the numbers
  const row = (label) => {
    const cell = make("td", { class: "fig-number" });
    return { cell, line: make("tr", {}, make("th", { scope: "row" }, label), cell) };
  };
  const arrives = row(text.arrives);
  const grown = row(text.grown);
  const alike = row(text.alike);
  const table = make("table", {}, make("tbody", {}, arrives.line, grown.line, alike.line));
  const verdict = make("p");
  const ours = pass({ ...initial, seed });
  const agrees = ["gradients", "sizes", "likeness"].every((name) =>
    ours[name].every((number, i) =>
      Math.abs(number - initial[name][i]) <= 1e-6 * Math.abs(initial[name][i])));
  body.append(
    make("p", { class: "fig-name" }, text.plot), plot, make("p", {}, text.legend), table, verdict,
    make("p", {}, text.note), make("p", {}, agrees ? text.agrees : text.differs),
  );

  function save() {
    for (const name of STATE) model.set(name, state[name]);
    model.save_changes();
  }

  function update(spoken = true) {
    box.checked = state.residual;
    for (const radio of radios) radio.checked = radio.value === state.placement;
    showDepth();
    showGain();
    const { gradients, sizes, likeness: likenesses } = pass({ ...state, seed });
    const power = (number) => Math.log10(Math.min(Math.max(number, FLOOR), 1 / FLOOR));
    const powers = [...gradients, ...sizes].map(power);
    const low = Math.min(-2, Math.floor(Math.min(...powers)));
    const high = Math.max(2, Math.ceil(Math.max(...powers)));
    const across = (layer) => left + ((right - left) * layer) / deepest;
    const down = (number) => bottom - ((bottom - top) * (power(number) - low)) / (high - low);
    const path = (numbers) => `M${numbers.map((n, i) => `${across(i)} ${down(n)}`).join("L")}`;
    grid.replaceChildren();
    const step = Math.max(1, Math.ceil((high - low) / 6));
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
      const y = down(10 ** at);
      const label = at === 0 ? "1" : `10${raised(at)}`;
      grid.append(
        make("line", { class: "fig-grid", x1: left, x2: right, y1: y, y2: y }),
        make("text", { class: "fig-tick", x: left - 6, y: y + 4, "text-anchor": "end" }, label),
      );
    }
    for (let layer = 0; layer <= deepest; layer += 8) {
      const x = across(layer);
      grid.append(
        make("line", { class: "fig-grid", x1: x, x2: x, y1: top, y2: bottom }),
        make("text", { class: "fig-tick", x, y: 254, "text-anchor": "middle" }, String(layer)),
      );
    }
    set(even, { y1: down(1), y2: down(1) });
    set(gradient, { d: path(gradients) });
    set(size, { d: path(sizes) });
    set(dot1, { transform: `translate(${across(0)} ${down(gradients[0])}) scale(0.7)` });
    set(dot2, {
      transform: `translate(${across(state.depth)} ${down(sizes.at(-1))}) scale(0.7)`,
    });
    const numbers = {
      depth: state.depth,
      gradient: sayAny(gradients[0]),
      size: sayAny(sizes.at(-1)),
      alike: say(likenesses.at(-1), 2),
    };
    arrives.cell.textContent = numbers.gradient;
    grown.cell.textContent = numbers.size;
    alike.cell.textContent = numbers.alike;
    const fate = gradients[0] < 1e-3 ? "vanishes" : gradients[0] > 1e3 ? "explodes" : "passes";
    const collapsed = likenesses.at(-1) > 0.99 ? ` ${text.collapsed}` : "";
    verdict.textContent = text[fate] + collapsed;
    set(plot, { "aria-label": fill(text.spoken, numbers) });
    if (spoken) voice.speak(`${fill(text.spoken, numbers)} ${verdict.textContent}`);
  }

  const follow = () => {
    for (const name of STATE) state[name] = model.get(name);
    update(false);
  };
  for (const name of STATE) model.on(`change:${name}`, follow);
  update(false);
  return () => {
    stop.abort();
    voice.silence();
    for (const name of STATE) model.off(`change:${name}`, follow);
  };
}

export default { render };
