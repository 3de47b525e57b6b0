// Connects the parts: the address holds one state, and every part shows its share of it.
(() => {
  const {get} = Dom;
  const views = [...document.querySelectorAll("#views a")].map(link => link.dataset.view);
  let shown = null;

  function showView(name) {
    for (const view of views) get(`view-${view}`).hidden = view !== name;
    for (const link of document.querySelectorAll("#views a")) {
      link.setAttribute("href", Links.link({view: link.dataset.view, cell: ""})); // a tab keeps the filters
      if (link.dataset.view === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${get(`title-${name}`).textContent} · hwmatrix`;
    Charts.open(name);
  }

  // The matrix is updated only if its own state changed, which opening a cell does not do.
  function showMatrix(state) {
    const {cell, view, compare, ...asked} = state;
    const wanted = JSON.stringify(asked);
    if (view !== "matrix" || wanted === shown || Data.count === 0) return;
    shown = wanted;
    const selection = Selection.select(state);
    Filters.update(state);
    Grid.update(selection, state);
    get("shown").textContent = `${Text.plural(selection.rows.length, "row")} of ${Text.whole(selection.total)} shown`;
    Marks.reached("grid");
  }

  function show(state) {
    Tradeoffs.update(state); // before the view's charts are drawn
    showView(views.includes(state.view) ? state.view : views[0]);
    showMatrix(state);
    Evidence.update(state.cell);
  }

  // A column's header cycles through best first, worst first, and the order of the plan.
  function sort(id) {
    const {sort: now} = Links.state();
    Links.go({sort: now === id ? `-${id}` : now === `-${id}` ? "" : id});
  }

  get("skip").addEventListener("click", event => {
    event.preventDefault();
    get("content").focus();
  });
  Theme.mount(get("theme"));
  Evidence.mount(get("evidence"));
  CellLists.mount();
  Examples.mount();
  Printing.mount();
  Charts.mount();
  if (Data.tradeoffs.length > 0) Tradeoffs.mount();
  if (Data.count > 0) {
    Filters.mount();
    Grid.mount(get("matrix"), {open: number => Links.go({cell: Data.cells.key(number)}), sort});
  }
  Links.onChange(show);
  show(Links.state());
  Marks.reached("ready");
})();
