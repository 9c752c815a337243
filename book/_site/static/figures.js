// Draws the book's figures without a kernel. A figure is an anywidget: the state that the worked run
// saved in the page holds its module (`_esm`), its style sheet (`_css`) and its values. The module is
// the very file that Jupyter loads; here it gets a model that lives in the page.
(() => {
  const VIEW = "application/vnd.jupyter.widget-view+json";
  const STATE = "application/vnd.jupyter.widget-state+json";

  // The part of Jupyter's widget model that anywidget promises to `render({model, el})`.
  class Model {
    constructor(values) {
      this.values = { ...values };
      this.listeners = new Map();
    }
    get(name) {
      return this.values[name];
    }
    set(name, value) {
      if (typeof name === "object") {
        for (const [key, each] of Object.entries(name)) this.set(key, each);
        return;
      }
      // As in Jupyter: what is set anew to the same is no change.
      if (JSON.stringify(this.values[name]) === JSON.stringify(value)) return;
      this.values[name] = value;
      this.tell(`change:${name}`, value);
      this.tell("change");
    }
    tell(event, ...details) {
      for (const listener of [...(this.listeners.get(event) ?? [])]) listener(this, ...details);
    }
    on(events, listener) {
      for (const event of events.split(" ")) {
        if (!this.listeners.has(event)) this.listeners.set(event, new Set());
        this.listeners.get(event).add(listener);
      }
    }
    off(events, listener) {
      for (const event of events ? events.split(" ") : [...this.listeners.keys()]) {
        if (listener) this.listeners.get(event)?.delete(listener);
        else this.listeners.delete(event);
      }
    }
    // Nobody listens on the other side: the values stay in the page.
    save_changes() {}
    send() {}
  }

  // A blob, because a page opened from a disk may not import a module file. One import a figure kind.
  const modules = new Map();
  function load(source) {
    if (!modules.has(source)) {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      modules.set(source, import(url).finally(() => URL.revokeObjectURL(url)));
    }
    return modules.get(source);
  }

  const models = new Map();
  const styles = new Set();

  async function draw(script, state) {
    const id = JSON.parse(script.textContent).model_id;
    const values = state[id]?.state;
    if (!values?._esm) return; // not a figure of ours: needs a kernel
    const el = document.createElement("div");
    el.className = "figure-live";
    script.after(el);
    if (values._css && !styles.has(values._css)) {
      styles.add(values._css);
      const style = document.createElement("style");
      style.textContent = values._css;
      document.head.append(style);
    }
    let definition = (await load(values._esm)).default;
    if (typeof definition === "function") definition = await definition();
    if (!models.has(id)) {
      const model = new Model(values);
      models.set(id, Promise.resolve(definition.initialize?.({ model })).then(() => model));
    }
    await definition.render({ model: await models.get(id), el });
    script.closest(".output")?.classList.add("figure-output");
  }

  function start() {
    const holder = document.querySelector(`script[type="${STATE}"]`);
    if (!holder) return;
    const { state } = JSON.parse(holder.textContent);
    for (const script of document.querySelectorAll(`script[type="${VIEW}"]`)) {
      draw(script, state).catch((error) => console.error("figure", error));
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
