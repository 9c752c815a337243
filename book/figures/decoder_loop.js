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
