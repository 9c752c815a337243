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
    keep(model, state, STATE);
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
