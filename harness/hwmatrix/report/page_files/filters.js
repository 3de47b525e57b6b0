// The bar above the matrix: search, filters, order, and what cells show.
const Filters = (() => {
  const TITLES = {family: "Family", architecture: "Architecture", target: "Target", status: "Status", precision: "Precision", execution: "Execution", size: "Size", inputs: "Inputs", path: "Text path"};
  const ORDERS = {"": "as planned", model: "by model", family: "by family", architecture: "by architecture", parameters: "by parameters", "-parameters": "by parameters, most first"};
  const parts = new Map();

  function mount() {
    const {el, get} = Dom;
    for (const name of Links.SETS) {
      const values = Selection.choices(name);
      if (values.length > 1) get("choices").append(filter(name, values));
    }
    get("sort").append(...Object.entries(ORDERS).map(([value, told]) => el("option", {value}, told)));
    get("search").addEventListener("input", event => {
      const started = event.timeStamp;
      Links.go({q: event.target.value}, {quiet: true});
      Marks.filtered(started);
    });
    get("sort").addEventListener("change", event => Links.go({sort: event.target.value}));
    get("show").addEventListener("change", event => Links.go({show: event.target.value}));
    get("filters").addEventListener("submit", event => event.preventDefault());
    get("filters").addEventListener("reset", event => {
      event.preventDefault();
      Links.go({q: "", sort: "", ...Object.fromEntries(Links.SETS.map(name => [name, []]))});
    });
    document.addEventListener("pointerdown", event => close(event.target));
    get("filters").addEventListener("keydown", event => {
      const open = event.key === "Escape" && event.target.closest("details[open]");
      if (!open) return;
      open.open = false;
      open.querySelector("summary").focus();
    });
  }

  // A filter's choices are built when it is first opened: there may be hundreds of architectures.
  function filter(name, values) {
    const {el} = Dom;
    const list = el("div", {role: "group", "aria-label": TITLES[name]});
    const part = el("details", {class: "filter"}, el("summary", null, TITLES[name]), list);
    const told = value => (name === "status" ? Data.words[value] : Text.spaced(value));
    part.addEventListener("toggle", () => {
      if (!part.open) return;
      close(part);
      if (list.childElementCount === 0) {
        list.append(...values.map(value => el("label", null, el("input", {type: "checkbox", value}), told(value))));
      }
      check(name);
    });
    list.addEventListener("change", event => {
      Links.go({[name]: [...list.querySelectorAll("input:checked")].map(box => box.value)});
      Marks.filtered(event.timeStamp);
    });
    parts.set(name, {part, list, summary: part.querySelector("summary")});
    return part;
  }

  function check(name) {
    const chosen = new Set(Links.state()[name]);
    for (const box of parts.get(name).list.querySelectorAll("input")) box.checked = chosen.has(box.value);
  }

  function close(besides) {
    for (const {part} of parts.values()) if (part.open && !part.contains(besides)) part.open = false;
  }

  // Show the state.
  function update(state) {
    const {get} = Dom;
    for (const [name, {part, summary}] of parts) {
      const chosen = state[name];
      part.classList.toggle("chosen", chosen.length > 0);
      summary.textContent = chosen.length === 0 ? TITLES[name] : `${TITLES[name]}: ${chosen.length === 1 ? Text.spaced(chosen[0]) : chosen.length}`;
      if (part.open) check(name);
    }
    if (get("search").value !== state.q) get("search").value = state.q;
    get("sort").value = state.sort in ORDERS ? state.sort : "";
    get("show").value = state.show;
  }

  return {mount, update};
})();
