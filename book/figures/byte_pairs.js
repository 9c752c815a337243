// Byte pairs: join the most frequent pair of neighbours, again and again.
// The widget that starts it, and every word it shows, stand in byte_pairs.py.

// --- the mathematics: pure functions, compared with Python by tests/test_figure_byte_pairs.py ---

/** Counts of neighbouring symbols: [[left, right, count], ...], most frequent first. */
export function countPairs(words) {
  const counts = new Map();
  for (const [symbols, times] of words) {
    for (let i = 1; i < symbols.length; i += 1) {
      const pair = `${symbols[i - 1]}\u0000${symbols[i]}`;
      counts.set(pair, (counts.get(pair) ?? 0) + times);
    }
  }
  return [...counts]
    .map(([pair, count]) => [...pair.split("\u0000"), count])
    .sort((a, b) => b[2] - a[2] || (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] < b[1] ? -1 : 1));
}

/** Every occurrence of a pair joined, from the left, without overlap. */
export function mergePair(symbols, [left, right]) {
  const merged = [];
  for (let i = 0; i < symbols.length; i += 1) {
    if (symbols[i] === left && symbols[i + 1] === right) {
      merged.push(left + right);
      i += 1;
    } else {
      merged.push(symbols[i]);
    }
  }
  return merged;
}

/** The pairs joined in so many merges, and the words after them. */
export function mergeAll(words, merges) {
  let cut = words.map(([word, times]) => [[...word], times]);
  const pairs = [];
  for (let i = 0; i < merges; i += 1) {
    const [best] = countPairs(cut);
    if (!best) break;
    const pair = best.slice(0, 2);
    pairs.push(pair);
    cut = cut.map(([symbols, times]) => [mergePair(symbols, pair), times]);
  }
  return { pairs, words: cut };
}

// --- the drawing --------------------------------------------------------------------------------

const STYLE = `
  .pairs { display: grid; gap: 0.75rem; }
  .pairs-both { display: grid; gap: 1rem; align-items: start; }
  @container (min-width: 36rem) { .pairs-both { grid-template-columns: 3fr 2fr; } }
  .pairs td.pairs-tokens, .pairs th.pairs-tokens { text-align: start; }
  .pairs-token { display: inline-block; padding: 0 0.3rem; margin: 1px; border-radius: 0.25rem;
    border: 1px solid var(--fig-edge); font-family: var(--pst-font-family-monospace, monospace); }
  .pairs-token.pairs-joined { background: var(--fig-surface); border-width: 2px; font-weight: 600; }
  .pairs tr.pairs-best td { font-weight: 600; }`;

function render({ model, el }) {
  const text = model.get("text");
  const initial = model.get("initial");
  const words = model.get("words");
  const most = model.get("most");
  const stop = new AbortController();
  const { signal } = stop;
  const root = makeFigure(el, text.figure, STYLE);
  const voice = makeVoice(root);
  const state = { merges: model.get("merges") };

  const body = make("div", { class: "pairs" });
  root.prepend(body);
  body.append(make("p", {}, text.how));
  const controls = make("fieldset", { class: "fig-controls", "aria-label": text.settings });
  const input = make("input", { type: "range", min: 0, max: most, step: 1 });
  const shown = make("output", { class: "fig-number" });
  const choose = (merges) => {
    state.merges = Math.min(most, merges);
    update();
  };
  input.addEventListener("input", () => choose(Number(input.value)), { signal });
  input.addEventListener("change", save, { signal });
  const next = make("button", { type: "button" }, text.next);
  next.addEventListener("click", () => { choose(state.merges + 1); save(); }, { signal });
  const reset = make("button", { type: "button" }, text.reset);
  reset.addEventListener("click", () => { choose(initial.merges); save(); }, { signal });
  controls.append(make("label", {}, text.merges, input, shown), next, reset);
  body.append(controls);

  const head = (...cells) => make("thead", {}, make("tr", {}, ...cells));
  const th = (words_, kind = "") => make("th", { scope: "col", class: kind }, words_);
  const wordRows = make("tbody");
  const pairRows = make("tbody");
  const wordTable = make("table", {}, make("caption", { class: "fig-name" }, text.words),
    head(th(text.word, "pairs-tokens"), th(text.times), th(text.tokens, "pairs-tokens")), wordRows);
  const pairTable = make("table", {}, make("caption", { class: "fig-name" }, text.pairs),
    head(th(text.pair, "pairs-tokens"), th(text.count), make("td")), pairRows);
  body.append(make("div", { class: "pairs-both" }, wordTable, pairTable));
  const learned = make("p");
  const total = make("p");
  body.append(learned, total);

  const all = mergeAll(words, most);
  const agrees =
    JSON.stringify(all.pairs) === JSON.stringify(initial.pairs) &&
    JSON.stringify(all.words.map(([symbols]) => symbols)) === JSON.stringify(initial.tokens);
  body.append(make("p", {}, agrees ? text.agrees : text.differs));

  function save() {
    model.set("merges", state.merges);
    model.save_changes();
  }

  const chip = (symbol) => make("span",
    { class: symbol.length > 1 ? "pairs-token pairs-joined" : "pairs-token" }, symbol);

  function update(spoken = true) {
    const { pairs, words: cut } = mergeAll(words, state.merges);
    input.value = shown.textContent = state.merges;
    wordRows.replaceChildren(...cut.map(([symbols, times], i) => make("tr", {},
      make("td", { class: "pairs-tokens" }, words[i][0]),
      make("td", { class: "fig-number" }, String(times)),
      make("td", { class: "pairs-tokens" }, ...symbols.map(chip)))));
    const counted = countPairs(cut);
    pairRows.replaceChildren(...counted.slice(0, 6).map(([left, right, count], i) => make("tr",
      { class: i === 0 ? "pairs-best" : "" },
      make("td", { class: "pairs-tokens" }, chip(left), chip(right)),
      make("td", { class: "fig-number" }, String(count)),
      make("td", {}, i === 0 ? text.chosen : ""))));
    if (!counted.length) {
      pairRows.append(make("tr", {}, make("td", { colspan: 3, class: "pairs-tokens" }, text.none)));
    }
    next.disabled = state.merges >= most || !counted.length;
    const joined = pairs.map((pair) => pair.join("")).join(", ") || text.nothing;
    learned.textContent = fill(text.learned, { tokens: joined });
    const letters = new Set(words.flatMap(([word]) => [...word]));
    total.textContent = fill(text.total, {
      tokens: cut.reduce((sum, [symbols, times]) => sum + symbols.length * times, 0),
      vocabulary: letters.size + pairs.length,
    });
    if (spoken) {
      voice.speak(fill(text.spoken, { merges: state.merges, total: total.textContent }));
    }
  }

  const follow = () => {
    state.merges = model.get("merges");
    update(false);
  };
  model.on("change:merges", follow);
  update(false);
  return () => {
    stop.abort();
    voice.silence();
    model.off("change:merges", follow);
  };
}

export default { render };
