// Attention in tiles: step through blocks of queries and keys, with the row's running numbers.
// The widget that starts it, and every word it shows, stand in tiles.py.

// --- the mathematics: pure functions, compared with torch by tests ------------------------------

/** The blocks of a length: pairs [start, end), the last one shorter where the size does not divide. */
export function blocks(length, size) {
  const made = [];
  for (let start = 0; start < length; start += size) {
    made.push([start, Math.min(length, start + size)]);
  }
  return made;
}

/** How many keys query t may see, from the first on; the last query sees the last key. */
export function visibleKeys(t, T, S, causal) {
  return causal ? Math.max(0, t + 1 + S - T) : S;
}

/** The tiles in the order of their computation, each [query block, key block]; hidden ones left out. */
export function tilesOf({ T, S, block_q, block_k, causal }) {
  return blocks(T, block_q).flatMap(([, end], i) =>
    blocks(S, block_k)
      .map(([start], j) => [i, j, start])
      .filter(([, , start]) => start < visibleKeys(end - 1, T, S, causal))
      .map(([, j]) => [i, j]),
  );
}

/** The scores q · k / √d, T rows of S. */
export function scoresOf({ q, k }) {
  const root = Math.sqrt(q[0].length);
  return q.map((row) => k.map((key) => row.reduce((sum, x, c) => sum + x * key[c], 0) / root));
}

/** The mean of the values by softmax over the first keys, and the logsumexp: what is right. */
export function plain(scores, v, seen) {
  const part = scores.slice(0, seen);
  const largest = Math.max(...part);
  const powers = part.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  const output = v[0].map((_, c) => powers.reduce((a, power, s) => a + power * v[s][c], 0) / sum);
  return { output, logsumexp: largest + Math.log(sum) };
}

/**
 * One row's way through its key blocks: after each the running maximum m, the running sum l, the
 * accumulator, the factor that the old ones were multiplied by, and how far the output so far is
 * from the right one for the keys seen. Without `rescale` the accumulator misses its factor.
 */
export function walkRow({ scores, v, t, T, S, block_k, causal, rescale }) {
  const visible = visibleKeys(t, T, S, causal);
  const states = [];
  let m = -Infinity;
  let l = 0;
  let accumulator = v[0].map(() => 0);
  for (const [start, end] of blocks(S, block_k)) {
    const stop = Math.min(end, visible);
    if (start >= stop) break;
    const part = scores[t].slice(start, stop);
    const largest = Math.max(...part);
    const next = Math.max(m, largest);
    const factor = m === -Infinity ? 0 : Math.exp(m - next);
    const powers = part.map((score) => Math.exp(score - next));
    l = l * factor + powers.reduce((a, b) => a + b, 0);
    const kept = rescale ? factor : 1;
    accumulator = accumulator.map(
      (sum, c) => sum * kept + powers.reduce((a, power, s) => a + power * v[start + s][c], 0),
    );
    m = next;
    const output = accumulator.map((sum) => sum / l);
    const right = plain(scores[t], v, stop).output;
    const error = Math.max(...output.map((x, c) => Math.abs(x - right[c])));
    states.push({ largest, m, factor, l, accumulator, output, error, powers, start });
  }
  return states;
}

/** Bytes to and from main memory of the plain form: scores and weights are written and read. */
export function plainTraffic({ T, S, d, bytes }) {
  return bytes * (T * d + S * d + 2 * T * S + 2 * T * S + S * d + T * d);
}

/** The same in tiles, up to and with tile `last`: keys and values once for each query block. */
export function tiledTraffic(setting, last) {
  const { T, S, d, bytes, block_q, block_k } = setting;
  const rows = blocks(T, block_q).map(([start, end]) => end - start);
  const columns = blocks(S, block_k).map(([start, end]) => end - start);
  const order = tilesOf(setting);
  let numbers = 0;
  order.slice(0, last + 1).forEach(([i, j], at) => {
    if (order[at - 1]?.[0] !== i) numbers += rows[i] * d; // queries come in
    numbers += 2 * columns[j] * d; // keys and values come in
    if (order[at + 1]?.[0] !== i) numbers += rows[i] * (d + 1); // output and logsumexp go out
  });
  return bytes * numbers;
}

/** Bytes that must lie in fast memory at once: the blocks, their scores, accumulator, m and l. */
export function fastMemory({ d, bytes, block_q, block_k }) {
  return bytes * (2 * block_q * d + 2 * block_k * d + block_q * block_k + 2 * block_q);
}

/** Everything that Python computes too, for the figure's own test of itself. */
export function follow({ q, k, v, causal, rescale, block_q, block_k, bytes }) {
  const [T, S, d] = [q.length, k.length, q[0].length];
  const setting = { T, S, d, bytes, block_q, block_k, causal, rescale };
  const scores = scoresOf({ q, k });
  const ends = q.map((_, t) => walkRow({ scores, v, t, ...setting }).at(-1));
  const order = tilesOf(setting);
  return {
    tiles: order,
    output: ends.map(({ output }) => output),
    logsumexp: ends.map(({ m, l }) => m + Math.log(l)),
    plain_traffic: plainTraffic(setting),
    tiled_traffic: tiledTraffic(setting, order.length - 1),
    fast: fastMemory(setting),
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

// --- the drawing --------------------------------------------------------------------------------

const STYLE = `
  .fig-tiles { display: grid; gap: 0.75rem 1.5rem; margin-top: 0.6rem;
    grid-template-columns: minmax(0, 1fr); }
  @container (min-width: 40rem) {
    .fig-tiles { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); } }
  .fig-tiles > div { display: grid; gap: 0.6rem; align-content: start; }
  .fig-tiles-map { cursor: pointer; }
  .fig-tiles-cell { fill: rgb(var(--fig-plus)); stroke: none; }
  .fig-tiles-hidden { fill: var(--fig-muted); stroke: none; }
  .fig-tiles-tile { fill: none; stroke: var(--fig-edge); stroke-width: 1; }
  .fig-tiles-done { fill: var(--fig-surface); }
  .fig-tiles-skipped { stroke: var(--fig-line); stroke-dasharray: 3 3; }
  .fig-tiles-cross { stroke: var(--fig-line); stroke-width: 1; }
  .fig-tiles-now { stroke: var(--fig-text); stroke-width: 2.5; }
  .fig-tiles-row { fill: none; stroke: var(--fig-2); stroke-width: 2; }
  .fig-tiles-strip { fill: var(--fig-surface); stroke: var(--fig-edge); stroke-width: 1; }
  .fig-tiles-in { fill: var(--fig-1); stroke: var(--fig-text); stroke-width: 2; }
  .fig .fig-tiles-walk :is(th, td) { text-align: end; padding: 0.15rem 0.25rem;
    font-size: 0.8rem; }
  .fig .fig-tiles-walk :is(th, td):first-child { text-align: start; }
  .fig-tiles-walk tr.fig-tiles-at > * { font-weight: 700;
    box-shadow: inset 0 -2px var(--fig-edge); }
  .fig-tiles-walk tr.fig-tiles-later > * { color: var(--fig-muted); }
  .fig .fig-tiles-numbers { display: grid; grid-template-columns: auto 1fr; gap: 0.1rem 0.75rem;
    margin: 0; }
  .fig .fig-tiles-numbers dt { font-weight: normal; color: var(--fig-muted); margin: 0; }
  .fig .fig-tiles-numbers dd { margin: 0; text-align: end; }
  .fig .fig-tiles-traffic :is(th, td):first-child { text-align: start; }
`;

const STATE = ["causal", "rescale", "block_q", "block_k", "memory", "row", "step"];
const CELL = 16;
const LEFT = 40;
const TOP = 40;

function render({ model, el }) {
  const text = model.get("text");
  const initial = model.get("initial");
  const [q, k, v] = ["q", "k", "v"].map((trait) => model.get(trait));
  const bytes = model.get("bytes_per_number");
  const memories = model.get("memories");
  const [T, S, d] = [q.length, k.length, q[0].length];
  const scores = scoresOf({ q, k });
  const stop = new AbortController();
  const { signal } = stop;
  let state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));

  const root = makeFigure(el, text.figure, STYLE);
  const voice = makeVoice(root);

  // -- controls
  const slider = (name, min, max) => make("input", { type: "range", name, min, max, step: 1 });
  const number = () => make("output", { class: "fig-number", "aria-hidden": "true" });
  const stepSlider = slider("step", 1, 1);
  const rowSlider = slider("row", 1, T);
  const queriesSlider = slider("block_q", 2, T);
  const keysSlider = slider("block_k", 2, S);
  const memorySlider = slider("memory", 0, memories.length - 1);
  const [stepNumber, rowNumber, queriesNumber, keysNumber, memoryNumber] = [1, 2, 3, 4, 5].map(
    number,
  );
  const causalBox = make("input", { type: "checkbox", name: "causal" });
  const rescaleBox = make("input", { type: "checkbox", name: "rescale" });
  const plainButton = { type: "button", style: "margin-inline-start:0" };
  const back = make("button", plainButton, text.back);
  const next = make("button", plainButton, text.next);
  const reset = make("button", { type: "button" }, text.reset);
  const controls = make(
    "div",
    { class: "fig-controls", role: "group", "aria-label": text.settings },
    make("label", {}, text.step, stepSlider, stepNumber),
    back,
    next,
    make("label", {}, text.row, rowSlider, rowNumber),
    make("label", {}, text.block_q, queriesSlider, queriesNumber),
    make("label", {}, text.block_k, keysSlider, keysNumber),
    make("label", {}, text.memory, memorySlider, memoryNumber),
    make("label", {}, causalBox, text.causal),
    make("label", {}, rescaleBox, text.rescale),
    reset,
  );

  // -- the map of tiles
  const [width, height] = [LEFT + S * CELL + 4, TOP + T * CELL + 4];
  const map = make("svg", {
    class: "fig-tiles-map",
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
  });
  const mapNote = make("p");

  // -- the row
  const rowTitle = make("div", { class: "fig-name" });
  const pair = (words) => {
    const value = make("dd", { class: "fig-number" });
    return { parts: [make("dt", {}, words), value], value };
  };
  const pairs = {
    m: pair(text.running_maximum),
    l: pair(text.running_sum),
    accumulator: pair(text.accumulator),
    output: pair(text.output_now),
    error: pair(text.error_now),
  };
  const numbers = make(
    "dl",
    { class: "fig-tiles-numbers" },
    ...Object.values(pairs).flatMap(({ parts }) => parts),
  );
  const head = (words) => make("th", { scope: "col" }, words);
  const walkBody = make("tbody");
  const walk = make(
    "table",
    { class: "fig-tiles-walk" },
    make("caption", { class: "fig-name" }, text.walk),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        head(text.keys_column),
        head(text.largest_column),
        head("m"),
        head(text.factor_column),
        head("ℓ"),
        head(text.error_column),
      ),
    ),
    walkBody,
  );
  const walkNote = make("p");

  // -- memory and traffic
  const fastTitle = make("div", { class: "fig-name" }, text.fast);
  const fastBar = make("span");
  const fastNote = make("p", { class: "fig-tiles-fast" });
  const line = (words) => {
    const value = make("td", { class: "fig-number" });
    const share = make("td", { class: "fig-number" });
    return { row: make("tr", {}, make("th", { scope: "row" }, words), value, share), value, share };
  };
  const lines = {
    plain: line(text.plain_line),
    now: line(text.so_far_line),
    all: line(text.tiled_line),
  };
  const traffic = make(
    "table",
    { class: "fig-tiles-traffic" },
    make("caption", { class: "fig-name" }, text.traffic),
    make(
      "thead",
      {},
      make("tr", {}, head(text.form_column), head(text.bytes_column), head(text.share_column)),
    ),
    make("tbody", {}, ...Object.values(lines).map(({ row }) => row)),
  );
  const verdict = make("p", { class: "fig-tiles-verdict" });

  root.append(
    make("p", {}, text.how),
    controls,
    make(
      "div",
      { class: "fig-tiles" },
      make(
        "div",
        {},
        make("div", {}, make("div", { class: "fig-name" }, text.map), map),
        make("div", {}, mapNote, make("p", {}, text.legend)),
        make(
          "div",
          {},
          fastTitle,
          make("span", { class: "fig-bar", "aria-hidden": "true" }, fastBar),
          fastNote,
        ),
      ),
      make(
        "div",
        {},
        make("div", {}, rowTitle, numbers),
        make("div", {}, walk, walkNote),
        make("div", {}, traffic, make("p", {}, fill(text.traffic_note, { bytes, d }))),
      ),
    ),
    verdict,
  );

  const setting = () => ({ ...state, T, S, d, bytes });
  const span = ([start, end]) =>
    end - start > 1 ? fill(text.range, { first: start + 1, last: end }) : `${start + 1}`;

  function drawMap(order, at, row, seen) {
    const [i, j] = order[at];
    const rows = blocks(T, state.block_q);
    const columns = blocks(S, state.block_k);
    const parts = [];
    const box = (x, y, w, h, kind) =>
      parts.push(make("rect", { x, y, width: w, height: h, class: kind }));
    const left = (s) => LEFT + s * CELL;
    const top = (t) => TOP + t * CELL;
    columns.forEach(([start, end], b) =>
      box(
        left(start),
        22,
        (end - start) * CELL,
        10,
        b === j ? "fig-tiles-strip fig-tiles-in" : "fig-tiles-strip",
      ),
    );
    rows.forEach(([start, end], b) =>
      box(
        22,
        top(start),
        10,
        (end - start) * CELL,
        b === i ? "fig-tiles-strip fig-tiles-in" : "fig-tiles-strip",
      ),
    );
    rows.forEach(([first, last], qi) =>
      columns.forEach(([start, end], kj) => {
        const place = order.findIndex(([a, b]) => a === qi && b === kj);
        const kind = place < 0 ? " fig-tiles-skipped" : place < at ? " fig-tiles-done" : "";
        const [w, h] = [(end - start) * CELL, (last - first) * CELL];
        box(left(start), top(first), w, h, `fig-tiles-tile${kind}`);
        if (place < 0) {
          parts.push(
            make("line", {
              class: "fig-tiles-cross",
              x1: left(start) + 3,
              y1: top(first) + 3,
              x2: left(end) - 3,
              y2: top(last) - 3,
            }),
          );
        }
      }),
    );
    // What the tile computes: e to the score less the row's maximum, as how full a cell is.
    const [first, last] = rows[i];
    const [start, end] = columns[j];
    for (let t = first; t < last; t += 1) {
      const states = walkRow({ scores, v, t, ...setting() });
      const powers = states[j]?.powers ?? [];
      for (let s = start; s < end; s += 1) {
        if (s - start < powers.length) {
          const side = (CELL - 4) * Math.sqrt(powers[s - start]);
          const shift = (CELL - side) / 2;
          box(left(s) + shift, top(t) + shift, side, side, "fig-tiles-cell");
        } else {
          parts.push(
            make("circle", {
              cx: left(s) + CELL / 2,
              cy: top(t) + CELL / 2,
              r: 1.5,
              class: "fig-tiles-hidden",
            }),
          );
        }
      }
    }
    box(
      left(start),
      top(first),
      (end - start) * CELL,
      (last - first) * CELL,
      "fig-tiles-tile fig-tiles-now",
    );
    box(left(0) - 1, top(row), S * CELL + 2, CELL, "fig-tiles-row");
    const word = (x, y, words, more = {}) =>
      parts.push(
        make("text", { x, y, "text-anchor": "middle", "aria-hidden": "true", ...more }, words),
      );
    word(left(S / 2), 14, text.keys_axis);
    word(12, top(T / 2), text.queries_axis, { transform: `rotate(-90 12 ${top(T / 2)})` });
    map.replaceChildren(...parts);
    map.setAttribute(
      "aria-label",
      fill(text.map_spoken, {
        queries: span(rows[i]),
        keys: span(columns[j]),
        visited: at + 1,
        tiles: order.length,
        skipped: rows.length * columns.length - order.length,
        row: row + 1,
        seen,
      }),
    );
    mapNote.textContent = fill(text.map_note, {
      queries: span(rows[i]),
      keys: span(columns[j]),
      at: at + 1,
      tiles: order.length,
      skipped: rows.length * columns.length - order.length,
    });
  }

  function draw() {
    const order = tilesOf(setting());
    const at = Math.min(state.step, order.length - 1);
    const [, j] = order[at];
    const { row } = state;
    const columns = blocks(S, state.block_k);
    const states = walkRow({ scores, v, t: row, ...setting() });
    // A row may be done before the last tile of its block: the causal mask ends it.
    const now = states[Math.min(j, states.length - 1)];

    set(stepSlider, { max: order.length });
    const show = (input, value, output, words) => {
      input.value = value;
      input.setAttribute("aria-valuetext", words);
      output.textContent = words;
    };
    show(stepSlider, at + 1, stepNumber, `${at + 1} / ${order.length}`);
    show(rowSlider, row + 1, rowNumber, `${row + 1} / ${T}`);
    show(queriesSlider, state.block_q, queriesNumber, `${state.block_q}`);
    show(keysSlider, state.block_k, keysNumber, `${state.block_k}`);
    show(
      memorySlider,
      memories.indexOf(state.memory),
      memoryNumber,
      fill(text.bytes, { n: state.memory }),
    );
    causalBox.checked = state.causal;
    rescaleBox.checked = state.rescale;
    back.disabled = at === 0;
    next.disabled = at === order.length - 1;

    const visible = visibleKeys(row, T, S, state.causal);
    drawMap(order, at, row, Math.min(columns[j][1], visible));

    rowTitle.textContent = fill(text.row_title, { row: row + 1 });
    const error = (value) => (value < 1e-12 ? say(0, 3) : sayTiny(value, 3));
    const vector = (values) => `(${values.map((x) => say(x, 3)).join(", ")})`;
    pairs.m.value.textContent = say(now.m, 3);
    pairs.l.value.textContent = say(now.l, 3);
    pairs.accumulator.value.textContent = vector(now.accumulator);
    pairs.output.value.textContent = vector(now.output);
    pairs.error.value.textContent = error(now.error);
    walkBody.replaceChildren(
      ...columns.map((column, b) => {
        const made = states[b];
        const done = b <= j && made;
        const cells = done
          ? [say(made.largest), say(made.m), say(made.factor, 3), say(made.l, 3), error(made.error)]
          : [made ? "" : text.hidden, "", "", "", ""];
        return make(
          "tr",
          { class: b === j ? "fig-tiles-at" : done ? "" : "fig-tiles-later" },
          make("th", { scope: "row" }, span(column)),
          ...cells.map((words) => make("td", { class: "fig-number" }, words)),
        );
      }),
    );
    walkNote.textContent = state.rescale ? text.walk_note : text.broken_note;

    const needed = fastMemory(setting());
    const fits = needed <= state.memory;
    fastBar.style.width = `${Math.min(100, (100 * needed) / state.memory)}%`;
    fastBar.style.background = `var(--fig-${fits ? 1 : 2})`;
    fastNote.textContent = fill(fits ? text.fits : text.too_large, { needed, there: state.memory });

    const all = plainTraffic(setting());
    const share = (part) => `${say((100 * part) / all, 0)} %`;
    for (const [kind, value] of [
      ["plain", all],
      ["now", tiledTraffic(setting(), at)],
      ["all", tiledTraffic(setting(), order.length - 1)],
    ]) {
      lines[kind].value.textContent = value;
      lines[kind].share.textContent = share(value);
    }
    return { order, at, now, needed, fits };
  }

  // -- what the reader does
  const write = (change) => {
    state = { ...state, ...change };
    for (const [trait, value] of Object.entries(change)) model.set(trait, value);
    const { order, at, now, fits } = draw();
    voice.speak(
      fill(text.spoken, {
        step: at + 1,
        steps: order.length,
        row: state.row + 1,
        m: say(now.m),
        sum: say(now.l),
        error: now.error < 1e-12 ? say(0, 3) : sayTiny(now.error, 3, text.spoken_power),
        fits: fits ? text.fits_word : text.too_large_word,
      }),
    );
  };
  const save = () => model.save_changes();
  /** To a tile; the row that is followed stays in the block of queries, at its place in it. */
  const toTile = (step) => {
    const order = tilesOf(setting());
    const at = Math.min(order.length - 1, Math.max(0, step));
    const [first, last] = blocks(T, state.block_q)[order[at][0]];
    write({ step: at, row: Math.min(last - 1, first + (state.row % state.block_q)) });
  };
  /** To a row; the tile is the one of the same keys, or the last that its queries see. */
  const toRow = (row, keyBlock) => {
    const order = tilesOf(setting());
    const i = Math.floor(row / state.block_q);
    const wanted = keyBlock ?? order[Math.min(state.step, order.length - 1)][1];
    let step = 0;
    order.forEach(([a, b], at) => {
      if (a === i && b <= wanted) step = at;
    });
    write({ row, step });
  };
  /** Other blocks: the same row, at its first tile. */
  const toBlocks = (change) => {
    state = { ...state, ...change };
    for (const [trait, value] of Object.entries(change)) model.set(trait, value);
    toRow(state.row, 0);
  };
  const on = (element, kind, act) => element.addEventListener(kind, act, { signal });
  for (const [button, way] of [
    [back, -1],
    [next, 1],
  ]) {
    on(button, "click", () => {
      toTile(state.step + way);
      save();
    });
  }
  on(stepSlider, "input", () => toTile(Number(stepSlider.value) - 1));
  on(rowSlider, "input", () => toRow(Number(rowSlider.value) - 1));
  on(queriesSlider, "input", () => toBlocks({ block_q: Number(queriesSlider.value) }));
  on(keysSlider, "input", () => toBlocks({ block_k: Number(keysSlider.value) }));
  on(memorySlider, "input", () => write({ memory: memories[Number(memorySlider.value)] }));
  for (const input of [stepSlider, rowSlider, queriesSlider, keysSlider, memorySlider]) {
    on(input, "change", save);
  }
  on(causalBox, "change", () => {
    toBlocks({ causal: causalBox.checked });
    save();
  });
  on(rescaleBox, "change", () => {
    write({ rescale: rescaleBox.checked });
    save();
  });
  on(reset, "click", () => {
    write(Object.fromEntries(STATE.map((trait) => [trait, initial[trait]])));
    save();
  });
  on(map, "click", (event) => {
    const seen = map.getBoundingClientRect();
    const s = Math.floor((((event.clientX - seen.left) / seen.width) * width - LEFT) / CELL);
    const t = Math.floor((((event.clientY - seen.top) / seen.height) * height - TOP) / CELL);
    if (s < 0 || s >= S || t < 0 || t >= T) return;
    toRow(t, Math.floor(s / state.block_k));
    save();
  });

  // -- what Python does; the events that our own model.set raises change nothing
  const follows = () => {
    state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));
    draw();
  };
  for (const trait of STATE) model.on(`change:${trait}`, follows);

  // -- the figure checks itself: its numbers against those from Python, without the broken rescale
  const right = agree(follow({ ...initial, q, k, v, bytes, rescale: true }), initial.numbers);
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
