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

// --- the drawing --------------------------------------------------------------------------------

const STYLE = `
  .clock { display: grid; gap: 0.75rem; }
  .clock-faces { display: grid; gap: 0.5rem; grid-template-columns: repeat(2, 1fr); }
  @container (min-width: 36rem) { .clock-faces { grid-template-columns: repeat(4, 1fr); } }
  .clock-faces figure { margin: 0; text-align: center; }
  .clock-faces figcaption { font-size: 0.8rem; color: var(--fig-muted); }
  .clock svg.clock-curve { max-width: 40rem; }
  @container (max-width: 28rem) { .fig .clock svg text.fig-tick { font-size: 19px; } }
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
  const curve = make("svg", { class: "clock-curve", viewBox: "0 0 640 204", role: "img" });
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
      { class: "fig-tick", x: 330 + at * (300 / longest), y: 178, "text-anchor": "middle" },
      say(at, 0)));
  }
  curve.append(make("text", { x: 330, y: 199, "text-anchor": "middle", class: "fig-tick" },
    text.distance));
  const reading = make("p", { class: "fig-number" });
  body.append(make("p", { class: "fig-name" }, text.curve), curve, reading, make("p", {}, text.note));
  const ours = score(q, k, initial.t, initial.s, initial.base);
  const agrees = Math.abs(ours - initial.score) <= 1e-9;
  body.append(make("p", {}, agrees ? text.agrees : text.differs));

  function save() {
    keep(model, state, ["t", "s", "base"]);
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
