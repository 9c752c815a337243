// Attention as a soft look-up: drag the query, the keys and the values, and watch attention follow.
// The widget that starts it, and every word it shows, stand in soft_lookup.py.

// --- the mathematics: pure functions, compared with torch by tests/test_figures.py -------------

/** Softmax of a list of scores; the largest is subtracted first, so that nothing overflows. */
export function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

/** diag(w) - w wᵀ. The diagonal is summed, not w(1 - w), which loses its digits as w nears 1. */
export function softmaxJacobian(weights) {
  return weights.map((wi, i) =>
    weights.map((wj, j) =>
      i === j
        ? wi * weights.reduce((sum, other, o) => (o === i ? sum : sum + other), 0)
        : -wi * wj || 0,
    ),
  );
}

/** Entropy of the weights in bits; a weight of 0 counts 0. */
export function entropyBits(weights) {
  return weights.reduce((sum, w) => (w > 0 ? sum - w * Math.log2(w) : sum), 0);
}

/** What the dot products of the picture are multiplied by, to spread as those of width d do. */
export function spreadFactor(width) {
  return Math.sqrt(width / 2);
}

/** Everything that follows from the state: the forward pass, its entropy and its gradient. */
export function attend({ q, k, v, scale, temperature, width }) {
  const drawnDots = k.map(([x, y]) => q[0] * x + q[1] * y);
  const dots = drawnDots.map((dot) => dot * spreadFactor(width));
  const scores = dots.map((dot) => dot / (scale ? Math.sqrt(width) : 1) / temperature);
  const weights = softmax(scores);
  const output = [0, 1].map((axis) => weights.reduce((sum, w, i) => sum + w * v[i][axis], 0));
  const jacobian = softmaxJacobian(weights);
  const gradient = Math.max(...jacobian.map((row, i) => row[i]));
  const entropy = entropyBits(weights);
  return { drawnDots, dots, scores, weights, output, entropy, jacobian, gradient };
}

/** The convex outline of a few points, anticlockwise (Andrew's monotone chain). */
export function outline(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const turn = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (list) => {
    const chain = [];
    for (const point of list) {
      while (chain.length > 1 && turn(chain.at(-2), chain.at(-1), point) <= 0) chain.pop();
      chain.push(point);
    }
    return chain.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}

/** Whether two nested lists of numbers agree to 1e-6, relative to numbers larger than 1. */
export function agree(ours, theirs) {
  if (Array.isArray(ours)) {
    return ours.length === theirs?.length && ours.every((x, i) => agree(x, theirs[i]));
  }
  return Math.abs(ours - theirs) <= 1e-6 * Math.max(1, Math.abs(theirs));
}

const STYLE = `
  .fig-look { display: grid; gap: 0.6rem 1.25rem; margin-top: 0.6rem;
    grid-template: "keys" "weights" "values" "results" / minmax(0, 1fr); }
  @container (min-width: 35rem) {
    .fig-look { grid-template: "keys values" "weights results" / minmax(0, 1fr) minmax(0, 1fr); }
  }
  .fig-look-arrow { stroke-width: 1.5; }
  .fig-look-query { stroke: var(--fig-text); stroke-width: 3; }
  .fig-look-along { stroke: var(--fig-text); stroke-width: 1; opacity: 0.35; }
  .fig-look-foot { stroke-width: 1.5; stroke-dasharray: 2 3; }
  .fig-look-outline { fill: none; stroke: var(--fig-edge); stroke-dasharray: 6 4; }
  .fig-look-pull { stroke-linecap: round; }
  .fig-look-mark { stroke-width: 2; stroke-linejoin: round; }
  .fig-look-output-mark { pointer-events: none; }
  .fig-look-cover { fill: var(--fig-back); }
  .fig-look-core { fill: var(--fig-text); stroke: var(--fig-back); stroke-width: 1.5; }
  .fig-look-icon { display: inline-block; width: 1.2em; height: 1.2em; vertical-align: -0.25em; }
  .fig .fig-look-weights :is(th, td):first-child { text-align: start; white-space: nowrap; }
  .fig-look-weights td.fig-look-wide { width: 30%; }
  .fig-look-results { display: grid; gap: 0.5rem; align-content: start; }
  .fig-look-pair { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 0.75rem; }
  .fig-look-jacobian { table-layout: fixed; }
  .fig .fig-look-jacobian :is(th, td) { text-align: center; padding: 0.15rem 0.1rem;
    font-size: 0.8rem; }
  .fig .fig-look-jacobian thead :is(th, td) { border: 0; }
  .fig .fig-look-jacobian tbody td { border: 1px solid var(--fig-back); }
  .fig .fig-look-crowded :is(th, td) { font-size: 0.65rem; }
  .fig-look-jacobian :is(th, td):first-child { width: 2.2rem; }
`;

const STATE = ["q", "k", "v", "scale", "temperature", "width"];

function render({ model, el }) {
  const text = model.get("text");
  const limit = model.get("limit");
  const widths = model.get("widths");
  const initial = model.get("initial");
  const count = initial.k.length;
  const crowded = count > 4; // six columns of numbers have to fit a phone
  const indices = [...Array(count).keys()];
  const name = (letter, i) => letter + "₁₂₃₄₅₆"[i];
  const colour = (i) => `var(--fig-${i + 1})`;
  const stop = new AbortController();
  const { signal } = stop;
  let state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));

  const root = makeFigure(el, text.figure, STYLE);
  const voice = makeVoice(root);

  // -- controls
  const number = (words) =>
    make("output", { class: "fig-number", "aria-hidden": "true" }, words ?? "");
  const scaleBox = make("input", { type: "checkbox", name: "scale" });
  const widthSlider = make("input", {
    type: "range",
    name: "width",
    min: 0,
    max: widths.length - 1,
    step: 1,
  });
  const [coolest, hottest] = model.get("temperatures").map(Math.log10);
  const heatSlider = make("input", {
    type: "range",
    name: "temperature",
    min: coolest,
    max: hottest,
    step: 0.05,
  });
  const widthNumber = number();
  const heatNumber = number();
  const reset = make("button", { type: "button" }, text.reset);
  const controls = make(
    "div",
    { class: "fig-controls", role: "group", "aria-label": text.settings },
    make("label", {}, scaleBox, text.scale),
    make("label", {}, text.width, widthSlider, widthNumber),
    make("label", {}, text.temperature, heatSlider, heatNumber),
    reset,
  );

  // -- the plane of the query and the keys
  const keyPlane = makePlane(limit, text.key_plane);
  const along = make("line", { class: "fig-look-along" });
  const feet = indices.map((i) => make("line", { class: "fig-look-foot", stroke: colour(i) }));
  const arrows = indices.map((i) =>
    make("line", { class: "fig-look-arrow", stroke: colour(i), x1: 0, y1: 0 }),
  );
  const queryArrow = make("line", { class: "fig-look-query", x1: 0, y1: 0 });
  keyPlane.svg.append(along, ...feet, ...arrows, queryArrow);

  // -- the plane of the values and the output
  const valuePlane = makePlane(limit, text.value_plane);
  const hull = make("polygon", { class: "fig-look-outline" });
  const pulls = indices.map((i) => make("line", { class: "fig-look-pull", stroke: colour(i) }));
  const outputName = make("text", { "text-anchor": "middle" }, text.output);
  const star = "M0 -12L3.4 -3.8L12 -3L5.4 2.7L7.4 11L0 6.4L-7.4 11L-5.4 2.7L-12 -3L-3.4 -3.8Z";
  const outputMark = make(
    "g",
    { class: "fig-look-output-mark" },
    make("path", { class: "fig-look-core", d: star }),
    outputName,
  );
  valuePlane.svg.append(hull, ...pulls);

  // -- the points
  const write = (change) => {
    state = { ...state, ...change };
    for (const [trait, value] of Object.entries(change)) model.set(trait, value);
    voice.speak(spoken(draw()));
  };
  const save = () => model.save_changes();
  const point = (plane, label, letter, get, move, mark) => {
    const made = makePoint({
      plane,
      limit,
      label,
      roleText: text.point,
      valueText: text.at,
      get,
      move,
      done: save,
      signal,
    });
    const caption = make("text", { "text-anchor": "middle", "aria-hidden": "true" }, letter);
    made.group.append(mark, caption);
    plane.svg.append(made.group);
    const show = () => {
      made.show();
      // The label stands on the far side of the origin, clear of the arrow, and inside the frame.
      const [x, y] = get();
      const length = Math.hypot(x, y) || 1;
      const [left, top] = plane.toPixels([x, y]);
      const aside = [left + (22 * x) / length, top - (20 * y) / length];
      const [at, down] = aside.map((c) => Math.min(140, Math.max(-140, c)));
      const flip = Math.hypot(at - left, down - top) < 14 ? -44 : 0; // in a corner: below instead
      set(caption, { x: at - left, y: down - top + 5 + (flip && (top < 0 ? 28 : -28)) });
    };
    return { show };
  };
  const marked = (i) =>
    make("path", { class: "fig-look-mark", d: MARKS[i], stroke: colour(i), fill: colour(i) });
  // A mark covers the lines below it, and is filled as far as its weight goes.
  const covering = (i, mark) =>
    make("g", {}, make("path", { class: "fig-look-cover", d: MARKS[i] }), mark);
  const replaced = (list, i, pair) => list.map((old, j) => (j === i ? pair : old));
  const keyMarks = indices.map(marked);
  const valueMarks = indices.map(marked);
  const query = make("circle", { class: "fig-look-core", r: 8 });
  const queryPoint = point(
    keyPlane,
    text.query,
    "q",
    () => state.q,
    (pair) => write({ q: pair }),
    query,
  );
  const keyPoints = indices.map((i) =>
    point(
      keyPlane,
      fill(text.key, { i: i + 1 }),
      name("k", i),
      () => state.k[i],
      (pair) => write({ k: replaced(state.k, i, pair) }),
      covering(i, keyMarks[i]),
    ),
  );
  const valuePoints = indices.map((i) =>
    point(
      valuePlane,
      fill(text.value, { i: i + 1 }),
      name("v", i),
      () => state.v[i],
      (pair) => write({ v: replaced(state.v, i, pair) }),
      covering(i, valueMarks[i]),
    ),
  );
  valuePlane.svg.append(outputMark); // on top, and let through to the points below
  const points = [queryPoint, ...keyPoints, ...valuePoints];

  // -- the numbers
  const icon = (i) =>
    make(
      "svg",
      {
        class: "fig-look-icon",
        viewBox: "-12 -12 24 24",
        "aria-hidden": "true",
        style: "display:inline-block;width:1.2em;margin:0",
      },
      make("path", { d: MARKS[i], fill: colour(i) }),
    );
  const head = (words, more = {}) => make("th", { scope: "col", ...more }, words);
  const cell = () => make("td", { class: "fig-number" });
  const rows = indices.map((i) => {
    const bar = make("span", { style: `background:${colour(i)}` });
    const row = { dot: cell(), score: cell(), weight: cell(), bar };
    row.line = make(
      "tr",
      {},
      make("th", { scope: "row" }, icon(i), " ", name("k", i)),
      row.dot,
      row.score,
      row.weight,
      make(
        "td",
        { class: "fig-look-wide", "aria-hidden": "true" },
        make("span", { class: "fig-bar" }, bar),
      ),
    );
    return row;
  });
  const formula = make("p", { class: "fig-number fig-look-formula" });
  const table = make(
    "table",
    {},
    make("caption", { class: "fig-name" }, text.weights),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        head(text.key_column),
        head(text.dot_column),
        head(text.score_column),
        head(text.weight_column),
        make("td", { "aria-hidden": "true" }),
      ),
    ),
    make("tbody", {}, ...rows.map((row) => row.line)),
  );
  const widthNote = make("p");

  const outputNumber = make("span", { class: "fig-number fig-look-output" });
  const entropyNumber = make("span", { class: "fig-number fig-look-entropy" });
  const entropyBar = make("span", { style: "background:var(--fig-edge)" });
  const gradientNumber = make("span", { class: "fig-number fig-look-gradient" });
  const gradientNote = make("p");
  const cells = indices.map(() => indices.map(cell));
  const jacobian = make(
    "table",
    { class: `fig-look-jacobian${crowded ? " fig-look-crowded" : ""}` },
    make("caption", { class: "fig-unseen" }, text.gradient_table),
    make("thead", {}, make("tr", {}, make("td"), ...indices.map((j) => head(name("s", j))))),
    make(
      "tbody",
      {},
      ...cells.map((row, i) => make("tr", {}, make("th", { scope: "row" }, name("w", i)), ...row)),
    ),
  );
  const named = (words, value) =>
    make("div", { class: "fig-look-pair" }, make("span", { class: "fig-name" }, words), value);
  const verdict = make("p", { class: "fig-look-verdict" });

  const panel = (area, ...children) =>
    make("div", { style: `grid-area:${area}`, class: `fig-look-${area}` }, ...children);
  root.append(
    make("p", {}, text.how),
    controls,
    make(
      "div",
      { class: "fig-look" },
      panel(
        "keys",
        make("div", { class: "fig-name" }, text.key_plane),
        keyPlane.svg,
        make("p", {}, text.key_plane_note),
      ),
      panel("weights", table, formula, widthNote),
      panel(
        "values",
        make("div", { class: "fig-name" }, text.value_plane),
        valuePlane.svg,
        make("p", {}, text.value_plane_note),
      ),
      panel(
        "results",
        named(text.output_value, outputNumber),
        make(
          "div",
          {},
          named(text.entropy, entropyNumber),
          make("span", { class: "fig-bar", "aria-hidden": "true" }, entropyBar),
        ),
        make(
          "div",
          {},
          named(text.gradient, gradientNumber),
          jacobian,
          make("p", { "aria-hidden": "true" }, text.gradient_table),
          gradientNote,
        ),
      ),
    ),
    verdict,
  );

  function draw() {
    const seen = attend(state);
    const { q, k, v, scale, temperature, width } = state;

    scaleBox.checked = scale;
    widthSlider.value = widths.indexOf(width);
    widthSlider.setAttribute("aria-valuetext", width);
    widthNumber.textContent = width;
    heatSlider.value = Math.log10(temperature);
    heatSlider.setAttribute("aria-valuetext", say(temperature));
    heatNumber.textContent = say(temperature);

    for (const { show } of points) show();
    const line = (element, from, to, plane = keyPlane) => {
      const [x1, y1] = plane.toPixels(from);
      const [x2, y2] = plane.toPixels(to);
      set(element, { x1, y1, x2, y2 });
    };
    const square = q[0] ** 2 + q[1] ** 2;
    const length = Math.sqrt(square) || 1;
    const far = limit / (Math.max(Math.abs(q[0]), Math.abs(q[1])) || 1); // to the plane's edge
    line(
      along,
      q.map((c) => -c * far),
      q.map((c) => c * far),
    );
    line(queryArrow, [0, 0], q);
    indices.forEach((i) => {
      line(arrows[i], [0, 0], k[i]);
      const reach = square > 0 ? seen.drawnDots[i] / square : 0;
      line(
        feet[i],
        k[i],
        q.map((c) => c * reach),
      );
      feet[i].style.visibility = length > 0.05 && square > 0 ? "visible" : "hidden";
      const weight = seen.weights[i];
      keyMarks[i].setAttribute("fill-opacity", weight);
      valueMarks[i].setAttribute("fill-opacity", weight);
      line(pulls[i], v[i], seen.output, valuePlane);
      set(pulls[i], { "stroke-width": 0.5 + 7 * weight, "stroke-opacity": 0.25 + 0.5 * weight });
      rows[i].dot.textContent = say(seen.dots[i]);
      rows[i].score.textContent = say(seen.scores[i]);
      rows[i].weight.textContent = sayTiny(weight, 3);
      rows[i].bar.style.width = `${100 * weight}%`;
      cells[i].forEach((td, j) => {
        const entry = seen.jacobian[i][j];
        td.textContent = sayTiny(entry, crowded ? 2 : 3);
        const tint = entry > 0 ? "--fig-plus" : "--fig-minus"; // the sign is printed as well
        const strength = 0.45 * (Math.abs(entry) / 0.25); // no entry is larger than 0.25
        td.style.background = `rgb(var(${tint}) / ${strength})`;
      });
    });
    hull.setAttribute(
      "points",
      outline(v)
        .map((pair) => valuePlane.toPixels(pair).join())
        .join(" "),
    );
    const [left, top] = valuePlane.toPixels(seen.output);
    outputMark.setAttribute("transform", `translate(${left} ${top})`);
    outputName.setAttribute("y", top < 0 ? 25 : -16); // towards the middle: values are further out

    const divisors = [scale && `√${width}`, temperature !== 1 && say(temperature)].filter(Boolean);
    const divided = ["", ` / ${divisors[0]}`, ` / (${divisors.join(" · ")})`][divisors.length];
    formula.textContent = `s = q · k${divided},  w = softmax(s)`;
    const widened = fill(text.width_note, { d: width, factor: say(spreadFactor(width)) });
    widthNote.textContent = `${widened} ${scale ? text.scaled_note : text.unscaled_note}`;
    const most = Math.log2(count);
    const bits = { bits: sayTiny(seen.entropy, 2), most: say(most) };
    outputNumber.textContent = `(${seen.output.map((c) => say(c)).join(", ")})`;
    entropyNumber.textContent = fill(text.entropy_value, bits);
    entropyBar.style.width = `${(100 * seen.entropy) / most}%`;
    gradientNumber.textContent = fill(text.gradient_value, { largest: sayTiny(seen.gradient, 3) });
    gradientNote.textContent = fill(text.gradient_note, { step: sayTiny(seen.gradient / 10, 3) });
    return seen;
  }

  function spoken({ weights, output, entropy, gradient }) {
    const tiny = (value) => sayTiny(value, 3, text.spoken_power);
    return fill(text.spoken, {
      weights: weights
        .map((w, i) => fill(text.spoken_weight, { i: i + 1, weight: tiny(w) }))
        .join(", "),
      output: fill(text.at, { x: say(output[0]), y: say(output[1]) }),
      bits: tiny(entropy),
      most: say(Math.log2(count)),
      largest: tiny(gradient),
    });
  }

  // -- what the reader does
  const on = (element, kind, act) => element.addEventListener(kind, act, { signal });
  on(scaleBox, "change", () => {
    write({ scale: scaleBox.checked });
    save();
  });
  on(widthSlider, "input", () => write({ width: widths[Number(widthSlider.value)] }));
  on(heatSlider, "input", () =>
    write({ temperature: Number((10 ** Number(heatSlider.value)).toFixed(2)) }),
  );
  for (const slider of [widthSlider, heatSlider]) on(slider, "change", save);
  on(reset, "click", () => {
    write(Object.fromEntries(STATE.map((trait) => [trait, initial[trait]])));
    save();
  });

  // -- what Python does; the events that our own model.set raises change nothing
  const follow = () => {
    state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));
    draw();
  };
  for (const trait of STATE) model.on(`change:${trait}`, follow);

  // -- the figure checks itself: its numbers for the starting state against those from Python
  const own = attend(initial);
  const right = ["weights", "output", "entropy", "jacobian", "gradient"].every((part) =>
    agree(own[part], initial[part]),
  );
  verdict.textContent = right ? text.agrees : text.differs;
  if (!right) console.error(text.differs);

  draw();
  return () => {
    stop.abort();
    voice.silence();
    for (const trait of STATE) model.off(`change:${trait}`, follow);
  };
}

export default { render };
