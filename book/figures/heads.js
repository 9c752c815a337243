// Heads of a trained model: switch them off one by one, and see what the model no longer knows.
// The widget that starts it, and every word it shows, stand in heads.py.

// --- the mathematics: pure functions, compared with torch by tests/test_figures.py -------------

/** Softmax of a list of scores; the largest is subtracted first, so that nothing overflows. */
export function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

/**
 * Probabilities of every answer at one position: the output map and the read-out are linear, so the
 * logits are what the biases give (`base`, questions × letters) and a part of each head that is on
 * (`parts`, heads × positions × questions × letters).
 */
export function probabilities({ base, parts, on, query }) {
  return base.map((row, question) =>
    softmax(
      row.map((start, letter) =>
        parts.reduce((sum, head, h) => sum + (on[h] ? head[query][question][letter] : 0), start),
      ),
    ),
  );
}

/** The row of the table of accuracies: head h counts 2^h where it is on. */
export function subset(on) {
  return on.reduce((sum, is, h) => sum + (is ? 2 ** h : 0), 0);
}

/** Index of the largest number. */
export function largest(numbers) {
  return numbers.indexOf(Math.max(...numbers));
}

/** Whether two nested lists of numbers agree to a relative 1e-6 (absolutely below 1e-6). */
export function agree(ours, theirs) {
  if (Array.isArray(ours)) {
    return ours.length === theirs?.length && ours.every((x, i) => agree(x, theirs[i]));
  }
  return Math.abs(ours - theirs) <= 1e-6 * Math.max(1, Math.abs(theirs));
}

const STYLE = `
  .heads { display: grid; gap: 0.75rem; }
  .heads-maps { display: grid; gap: 0.75rem 1rem; grid-template-columns: repeat(2, minmax(0, 1fr)); }
  @container (min-width: 40rem) {
    .heads-maps { grid-template-columns: repeat(4, minmax(0, 1fr)); }
  }
  .heads-map { border: 1px solid var(--fig-line); border-radius: 0.4rem; padding: 0.35rem; }
  .heads-map label { display: flex; align-items: center; gap: 0.4rem; min-height: 2rem;
    font-weight: 600; cursor: pointer; }
  .heads-map input { width: 1.15rem; height: 1.15rem; margin: 0; accent-color: var(--fig-1); }
  .heads-map[data-off] svg { opacity: 0.25; }
  .heads-map p { min-height: 2.4em; }
  .heads-icon { width: 1rem; height: 1rem; flex: none; }
  .fig .heads-icon { display: inline-block; width: 1rem; margin: 0; }
  .heads-cell { fill: var(--fig-text); shape-rendering: crispEdges; }
  .heads-row { fill: none; stroke: var(--fig-focus); stroke-width: 1.5; }
  .fig svg text.heads-letter { font-size: 9px; fill: var(--fig-muted); text-anchor: middle; }
  .fig svg text.heads-letter[data-on] { fill: var(--fig-text); font-weight: 700; }
  .heads-tokens { display: flex; flex-wrap: wrap; gap: 0.2rem; border: 0; margin: 0; padding: 0;
    min-width: 0; align-items: center; }
  .heads-tokens legend { float: inline-start; padding: 0; margin-inline-end: 0.6rem;
    font-size: inherit; width: auto; color: inherit; }
  .fig .heads-tokens label { position: relative; display: grid; place-items: center; gap: 0;
    min-width: 2rem; min-height: 2.6rem; border: 1px solid var(--fig-edge); border-radius: 0.3rem;
    background: var(--fig-back); font-family: var(--pst-font-family-monospace, monospace);
    cursor: pointer; line-height: 1.1; }
  .fig .heads-tokens small { font-size: 0.65rem; color: var(--fig-muted); }
  .fig .heads-tokens input { position: absolute; inset: 0; width: 100%; height: 100%; opacity: 0;
    cursor: pointer; }
  .fig .heads-tokens label:has(:checked) { outline: 3px solid var(--fig-text); }
  .fig .heads-tokens label:has(:focus-visible) { outline: 3px solid var(--fig-focus);
    outline-offset: 2px; }
  .fig .heads-answers :is(th, td):first-child { text-align: start; }
  .heads-answers td.heads-wide { width: 26%; }
  @container (max-width: 30rem) {
    .fig .heads-answers :is(th, td) { padding: 0.2rem 0.15rem; font-size: 0.8rem;
      white-space: normal; overflow-wrap: anywhere; }
    .fig .heads-answers tbody td { overflow-wrap: normal; }
  }
  .heads-wrong { text-decoration: underline wavy; }`;

const STATE = ["on", "query"];
const SIZE = 12; // of a cell of a map
const EDGE = 13; // room for the letters beside it

function render({ model, el }) {
  const text = model.get("text");
  const tokens = model.get("tokens");
  const letters = model.get("letters");
  const questions = model.get("questions");
  const right = model.get("right");
  const weights = model.get("weights");
  const base = model.get("base");
  const parts = model.get("parts");
  const accuracy = model.get("accuracy");
  const initial = model.get("initial");
  const stop = new AbortController();
  const { signal } = stop;
  const positions = tokens.map((_token, t) => t);
  let state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));

  const root = makeFigure(el, text.figure, STYLE);
  const body = make("div", { class: "heads" }, make("p", {}, text.how));
  root.append(body);
  const voice = makeVoice(root);

  // -- the sequence: choose who asks
  const group = `heads-query-${Math.random().toString(36).slice(2)}`; // one group a figure
  const radios = positions.map((t) =>
    make("input", {
      type: "radio",
      name: group,
      value: t,
      "aria-label": fill(text.position, { t, token: tokens[t] }),
    }),
  );
  const chooser = make(
    "fieldset",
    { class: "heads-tokens" },
    make("legend", {}, text.query),
    ...positions.map((t) =>
      make("label", {}, radios[t], make("span", {}, tokens[t]), make("small", {}, String(t))),
    ),
  );
  const reset = make("button", { type: "button" }, text.reset);
  body.append(
    make(
      "div",
      { class: "fig-controls", role: "group", "aria-label": text.settings },
      chooser,
      reset,
    ),
  );

  // -- one map of weights a head, with its switch
  const side = tokens.length * SIZE;
  const maps = weights.map((table, h) => {
    const switched = make("input", { type: "checkbox" });
    const svg = make("svg", {
      viewBox: `${-EDGE} ${-EDGE} ${side + EDGE + 1} ${side + EDGE + 1}`,
      role: "img",
      "aria-label": fill(text.map, { h: h + 1 }),
    });
    svg.append(make("rect", { class: "fig-frame", x: 0, y: 0, width: side, height: side }));
    table.forEach((row, t) => {
      row.forEach((weight, s) => {
        if (weight < 0.005) return; // less than one of 255 shades
        svg.append(
          make("rect", {
            class: "heads-cell",
            x: s * SIZE,
            y: t * SIZE,
            width: SIZE,
            height: SIZE,
            "fill-opacity": weight.toFixed(3),
          }),
        );
      });
    });
    const row = make("rect", { class: "heads-row", x: 0, width: side, height: SIZE });
    svg.append(row);
    const across = positions.map((s) =>
      make("text", { class: "heads-letter", x: (s + 0.5) * SIZE, y: -3 }, tokens[s]),
    );
    const down = positions.map((t) =>
      make("text", { class: "heads-letter", x: -7, y: (t + 0.5) * SIZE + 3 }, tokens[t]),
    );
    svg.append(...across, ...down);
    svg.addEventListener(
      "click",
      (event) => {
        const seen = svg.getBoundingClientRect();
        const at = ((event.clientY - seen.top) / seen.height) * (side + EDGE + 1) - EDGE;
        const t = Math.floor(at / SIZE);
        if (t < 0 || t >= tokens.length) return;
        write({ query: t });
        save();
      },
      { signal },
    );
    const icon = make(
      "svg",
      { class: "heads-icon", viewBox: "-11 -11 22 22", "aria-hidden": "true" },
      make("path", { d: MARKS[h % MARKS.length], fill: `var(--fig-${(h % MARKS.length) + 1})` }),
    );
    const looks = make("p");
    const card = make(
      "div",
      { class: "heads-map" },
      make("label", {}, switched, icon, fill(text.head, { h: h + 1 })),
      svg,
      looks,
    );
    switched.addEventListener(
      "change",
      () => {
        write({ on: state.on.map((is, other) => (other === h ? switched.checked : is)) });
        save();
      },
      { signal },
    );
    return { card, switched, row, across, down, looks, table };
  });
  body.append(make("div", { class: "heads-maps" }, ...maps.map(({ card }) => card)));

  // -- what the model answers
  const head = make("tr");
  for (const title of ["question", "truth", "says", "sure", "accuracy"]) {
    head.append(make("th", { scope: "col" }, text[title]));
  }
  const rows = questions.map((question) => {
    const cells = ["truth", "says", "sure"].map(() => make("td", { class: "fig-number" }));
    const bar = make("span");
    const share = make("span", { class: "fig-number" });
    const last = make(
      "td",
      { class: "heads-wide" },
      share,
      make("span", { class: "fig-bar", "aria-hidden": "true" }, bar),
    );
    const row = make("tr", {}, make("th", { scope: "row" }, question), ...cells, last);
    bar.style.background = "var(--fig-1)";
    return { row, cells, bar, share };
  });
  const answers = make(
    "table",
    { class: "heads-answers" },
    make("caption", { class: "fig-name" }, text.answers),
    make("thead", {}, head),
    make("tbody", {}, ...rows.map(({ row }) => row)),
  );
  const verdict = make("p", { class: "heads-verdict" });
  body.append(answers, verdict);

  const write = (change) => {
    state = { ...state, ...change };
    for (const [trait, value] of Object.entries(change)) model.set(trait, value);
    voice.speak(spoken(draw()));
  };
  const save = () => model.save_changes();

  function draw() {
    const { on, query } = state;
    const seen = probabilities({ base, parts, on, query });
    const shares = accuracy[subset(on)];
    radios[query].checked = true;
    maps.forEach(({ card, switched, row, across, down, looks, table }, h) => {
      switched.checked = on[h];
      card.toggleAttribute("data-off", !on[h]);
      set(row, { y: query * SIZE });
      const most = largest(table[query]);
      positions.forEach((t) => {
        across[t].toggleAttribute("data-on", t === most);
        down[t].toggleAttribute("data-on", t === query);
      });
      const gaps = { token: tokens[most], t: most, weight: say(table[query][most]) };
      looks.textContent = on[h] ? fill(text.looks, gaps) : text.off;
    });
    rows.forEach(({ cells, bar, share }, i) => {
      const best = largest(seen[i]);
      const truth = right[query][i];
      const isRight = best === truth;
      cells[0].textContent = letters[truth];
      cells[1].textContent = fill(isRight ? text.is_right : text.is_wrong, {
        letter: letters[best],
      });
      cells[1].classList.toggle("heads-wrong", !isRight);
      cells[2].textContent = say(seen[i][best]);
      share.textContent = `${Math.round(100 * shares[i])} %`;
      bar.style.width = `${100 * shares[i]}%`;
    });
    return { seen, shares };
  }

  function spoken({ seen, shares }) {
    const off = state.on.map((is, h) => (is ? "" : h + 1)).filter(Boolean);
    return fill(text.spoken, {
      query: fill(text.position, { t: state.query, token: tokens[state.query] }),
      off: off.length ? off.join(", ") : text.none,
      answers: questions
        .map((question, i) =>
          fill(text.spoken_answer, {
            question,
            letter: letters[largest(seen[i])],
            share: Math.round(100 * shares[i]),
          }),
        )
        .join("; "),
    });
  }

  for (const radio of radios) {
    radio.addEventListener(
      "change",
      () => {
        write({ query: Number(radio.value) });
        save();
      },
      { signal },
    );
  }
  reset.addEventListener(
    "click",
    () => {
      write(Object.fromEntries(STATE.map((trait) => [trait, initial[trait]])));
      save();
    },
    { signal },
  );

  // -- what Python does; the events that our own model.set raises change nothing
  const follow = () => {
    state = Object.fromEntries(STATE.map((trait) => [trait, model.get(trait)]));
    draw();
  };
  for (const trait of STATE) model.on(`change:${trait}`, follow);

  // -- the figure checks itself: its numbers for the starting state against those from Python
  const own = probabilities({ base, parts, on: initial.on, query: initial.query });
  const isSame = agree(own, initial.probabilities);
  verdict.textContent = isSame ? text.agrees : text.differs;
  if (!isSame) console.error(text.differs);

  draw();
  return () => {
    stop.abort();
    voice.silence();
    for (const trait of STATE) model.off(`change:${trait}`, follow);
  };
}

export default { render };
