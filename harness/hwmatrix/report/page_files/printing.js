// Paper cannot scroll: for printing, the whole matrix, filtered and sorted, becomes a plain table.
const Printing = (() => {
  const {el} = Dom;

  function table(selection) {
    const heads = selection.columns.map(column => [Data.columns[column].target, Data.columns[column].detail].filter(Boolean).join(" "));
    const lines = selection.rows.map(row => el("tr", null,
      el("th", {scope: "row"}, Data.rows.model(row), el("br"), el("small", null, [Data.rows.settings(row), Text.spaced(Data.rows.family(row))].filter(Boolean).join(" · "))),
      selection.columns.map(column => cell(Data.places[row][column], selection))));
    return el("table", null, el("thead", null, el("tr", null, el("th", {scope: "col"}, "Model"), heads.map(head => el("th", {scope: "col"}, head)))), el("tbody", null, lines));
  }

  function cell(number, selection) {
    if (number < 0 || !selection.fits(number)) return el("td");
    return el("td", {class: Data.state(number)}, Marks.shape(Data.state(number)), ` ${Data.cells.label(number)}`);
  }

  function mount() {
    const place = Dom.get("printed");
    addEventListener("beforeprint", () => {
      const state = Links.state();
      if (state.view === "matrix" && Data.count > 0) place.replaceChildren(table(Selection.select(state)));
    });
    addEventListener("afterprint", () => place.replaceChildren());
  }

  return {mount};
})();
