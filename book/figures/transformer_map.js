// A map of the Transformer of 2017: choose a part, move the sizes, and shapes and counts follow.
// The widget that starts it, and every word it shows, stand in transformer_map.py.

// --- the mathematics: pure functions, compared with torch by tests/test_figures.py -------------

/** Parameters of each part over all layers, as a function of the sizes. */
export function countParameters({ H, d, F, N, V }) {
  const D = H * d;
  const attention = N * 4 * (D * D + D); // query, key, value, output
  const norm = N * 2 * D;
  const feedForward = N * (D * F + F + F * D + D);
  return {
    source_embedding: V * D,
    source_positions: 0,
    encoder_attention: attention,
    encoder_norm: 2 * norm,
    encoder_feed_forward: feedForward,
    target_embedding: 0,
    target_positions: 0,
    decoder_attention: attention,
    cross_attention: attention,
    decoder_norm: 3 * norm,
    decoder_feed_forward: feedForward,
    output: 0,
  };
}

/** What goes into a part and comes out of it: letters, and with the sizes filled in. */
export function shapesOf(part) {
  const side = part.startsWith("source") || part.startsWith("encoder") ? "S" : "T";
  if (part.endsWith("embedding")) return { in: ["B", side], out: ["B", side, "D"] };
  if (part === "output") return { in: ["B", "T", "D"], out: ["B", "T", "V"] };
  return { in: ["B", side, "D"], out: ["B", side, "D"] };
}

/** The letters of a shape with their sizes: `["B", "S"]` → "(32, 7)". */
export function fillShape(letters, sizes) {
  const all = { ...sizes, D: sizes.H * sizes.d };
  return `(${letters.map((letter) => all[letter]).join(", ")})`;
}

export function total(parameters) {
  return Object.values(parameters).reduce((sum, one) => sum + one, 0);
}

// --- the drawing --------------------------------------------------------------------------------

const STYLE = `
  .map { display: grid; gap: 0.75rem; }
  .map-both { display: grid; gap: 0.75rem; align-items: start; }
  @container (min-width: 40rem) { .map-both { grid-template-columns: 3fr 2fr; } }
  .map svg { max-width: 34rem; }
  .map-stack { fill: none; stroke: var(--fig-edge); stroke-dasharray: 5 4; }
  .map-flow { fill: none; stroke: var(--fig-edge); stroke-width: 1.5; }
  .map-part { cursor: pointer; outline: none; }
  .map-part rect { fill: var(--fig-surface); stroke: var(--fig-edge); stroke-width: 1; }
  .fig .map-part text { text-anchor: middle; pointer-events: none; stroke: none; }
  .map-part:hover rect { stroke: var(--fig-focus); }
  .map-part:focus-visible rect { stroke: var(--fig-focus); stroke-width: 3; }
  .map-part[aria-pressed="true"] rect { stroke: var(--fig-text); stroke-width: 2.5;
    fill: color-mix(in srgb, rgb(var(--fig-plus)) 22%, var(--fig-back)); }
  .map svg text.map-small { font-size: 11px; fill: var(--fig-muted); text-anchor: middle; }
  .map svg text.map-beside { text-anchor: end; }
  .map-panel { border: 1px solid var(--fig-line); border-radius: 0.4rem; padding: 0.6rem 0.8rem; }
  .map-panel h3 { margin: 0 0 0.3rem; font-size: 1rem; color: var(--fig-text); }
  .map-panel td { text-align: start; }
  .map-panel th { text-align: start; color: var(--fig-muted); }
  .map-panel a { color: var(--fig-focus); text-decoration: underline; font-weight: 600; }`;

const WIDTH = 168;
const HEIGHT = 34;
// Centre of each part, from the bottom of the picture to its top.
const PLACES = {
  source_embedding: [105, 440],
  source_positions: [105, 390],
  encoder_attention: [105, 320],
  encoder_feed_forward: [105, 270],
  encoder_norm: [105, 220],
  target_embedding: [335, 440],
  target_positions: [335, 390],
  decoder_attention: [335, 320],
  cross_attention: [335, 270],
  decoder_feed_forward: [335, 220],
  decoder_norm: [335, 170],
  output: [335, 90],
};

function render({ model, el }) {
  const text = model.get("text");
  const initial = model.get("initial");
  const chapters = model.get("chapters");
  const ranges = model.get("ranges");
  const stop = new AbortController();
  const { signal } = stop;
  const root = makeFigure(el, text.figure, STYLE);
  const voice = makeVoice(root);
  const state = { sizes: { ...model.get("sizes") }, part: model.get("part") };

  const body = make("div", { class: "map" });
  body.append(make("p", {}, text.how));
  root.prepend(body);

  // A notebook's neighbour is a notebook, a page's a page; in Colab there is no neighbour.
  const kind = document.body.dataset.jpThemeLight !== undefined ? ".ipynb"
    : "content_root" in document.documentElement.dataset ? ".html" : "";
  const hrefOf = (part) => `${chapters[part]}${kind}`;

  const svg = make("svg", { viewBox: "0 0 440 520", role: "group", "aria-label": text.figure });
  const flow = (d) => make("path", { class: "map-flow", d });
  svg.append(
    make("rect", { class: "map-stack", x: 8, y: 192, width: 194, height: 156, rx: 8 }),
    make("rect", { class: "map-stack", x: 238, y: 142, width: 194, height: 206, rx: 8 }),
    flow("M105 484V60H220V270H251"), // encoder's output, over to the cross-attention
    flow("M335 484V42"),
    flow("M243 265L251 270L243 275"),
    flow("M330 50L335 42L340 50"),
  );
  const note = (x, y, kind = "") => {
    const element = make("text", { class: `map-small ${kind}`, x, y });
    svg.append(element);
    return element;
  };
  const encoderName = note(97, 184, "map-beside");
  const decoderName = note(327, 134, "map-beside");
  note(105, 500).textContent = text.source;
  note(335, 500).textContent = text.target;
  note(335, 32).textContent = text.next;
  const memoryShape = note(158, 52);

  const buttons = Object.entries(PLACES).map(([part, [x, y]]) => {
    const label = make("text", { x, y: y + 4.5 });
    const group = make(
      "g",
      { class: "map-part", tabindex: "0", role: "button" },
      make("rect", {
        x: x - WIDTH / 2, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 6,
      }),
      label,
    );
    const choose = () => {
      state.part = part;
      update();
      save();
    };
    group.addEventListener("click", choose, { signal });
    group.addEventListener(
      "keydown",
      (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        choose();
      },
      { signal },
    );
    svg.append(group);
    return { part, group, label };
  });

  const heading = make("h3");
  const about = make("p");
  const cell = () => make("td", { class: "fig-number" });
  const rows = { in: cell(), out: cell(), parameters: cell() };
  const table = make("table");
  for (const name of ["in", "out", "parameters"]) {
    table.append(make("tr", {}, make("th", { scope: "row" }, text[name]), rows[name]));
  }
  const link = make("a", {}, text.chapter);
  link.hidden = !kind;
  const whole = make("p");
  const panel = make(
    "div", { class: "map-panel" }, heading, about, table, make("p", {}, link), whole,
  );
  body.append(make("div", { class: "map-both" }, svg, panel));

  const controls = make("fieldset", { class: "fig-controls", "aria-label": text.settings });
  const sliders = Object.entries(ranges).map(([name, [min, max]]) => {
    const step = name === "V" ? 1000 : name === "F" ? 64 : name === "d" ? 8 : 1;
    const input = make("input", { type: "range", min, max, step });
    const shown = make("output", { class: "fig-number" });
    input.addEventListener(
      "input",
      () => {
        state.sizes = { ...state.sizes, [name]: Number(input.value) };
        update();
      },
      { signal },
    );
    input.addEventListener("change", save, { signal });
    controls.append(make("label", {}, name, input, shown));
    return { name, input, shown };
  });
  const reset = make("button", { type: "button" }, text.reset);
  reset.addEventListener(
    "click",
    () => {
      state.sizes = { ...initial.sizes };
      state.part = initial.part;
      update();
      save();
    },
    { signal },
  );
  controls.append(reset);
  body.append(controls);

  const first = countParameters(initial.sizes);
  const agrees =
    total(first) === initial.total &&
    Object.entries(first).every(([part, count]) => initial.parameters[part] === count);
  body.append(make("p", {}, agrees ? text.agrees : text.differs));

  function save() {
    keep(model, state, ["sizes", "part"]);
  }

  function grouped(number) {
    return String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  }

  function update(spoken = true) {
    const { sizes, part } = state;
    const parameters = countParameters(sizes);
    for (const { name, input, shown } of sliders) {
      input.value = sizes[name];
      shown.textContent = grouped(sizes[name]);
    }
    for (const { part: one, group, label } of buttons) {
      label.textContent = fill(text.parts[one], sizes);
      set(group, { "aria-pressed": String(one === part), "aria-label": label.textContent });
    }
    encoderName.textContent = fill(text.encoder, sizes);
    decoderName.textContent = fill(text.decoder, sizes);
    memoryShape.textContent = `${text.memory} ${fillShape(["B", "S", "D"], sizes)}`;
    const shapes = shapesOf(part);
    heading.textContent = fill(text.parts[part], sizes);
    about.textContent = text.notes[part];
    for (const way of ["in", "out"]) {
      const letters = `(${shapes[way].join(", ")})`;
      rows[way].textContent = `${letters} = ${fillShape(shapes[way], sizes)}`;
    }
    if (part === "cross_attention") {
      rows.in.textContent += ` + (B, S, D) = ${fillShape(["B", "S", "D"], sizes)}`;
    }
    const isShared = part === "output" || part === "target_embedding";
    const count = parameters[part] ? grouped(parameters[part]) : text.none;
    rows.parameters.textContent = isShared ? text.shared : count;
    rows.parameters.style.whiteSpace = "normal";
    set(link, { href: hrefOf(part) });
    whole.textContent = `${text.total}: ${grouped(total(parameters))}`;
    if (spoken) {
      voice.speak(
        fill(text.spoken, {
          part: heading.textContent,
          shapes: `${rows.in.textContent} → ${rows.out.textContent}`,
          parameters: rows.parameters.textContent,
        }),
      );
    }
  }

  const follow = () => {
    state.sizes = { ...model.get("sizes") };
    state.part = model.get("part");
    update(false);
  };
  model.on("change:sizes", follow);
  model.on("change:part", follow);
  update(false);
  return () => {
    stop.abort();
    voice.silence();
    model.off("change:sizes", follow);
    model.off("change:part", follow);
  };
}

export default { render };
