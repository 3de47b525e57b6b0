// The matrix as a grid of which only the rows in sight are there, so that hundreds of models scroll like ten.
// Keyboard and roles are those of the ARIA grid pattern: one cell of it is in the tab order, arrows move that place.
const Grid = (() => {
  const ROW = 44; // pixels, as in grid.css
  const BEYOND = 6; // rows that are there above and below those in sight
  const HEAD = -1; // the row of column headers
  const {el} = Dom;
  const drawn = new Map();
  let host, heads, body, act;
  let shown = {rows: [], columns: [], fits: () => true};
  let show = "verdict";
  let place = {row: 0, column: 1};
  let painting = 0;

  // `act` has what a press does: open(cell) and sort(id).
  function mount(element, actions) {
    [host, act] = [element, actions];
    heads = el("div", {class: "row heads", role: "row", "aria-rowindex": 1});
    body = el("div", {class: "body", role: "rowgroup"});
    host.append(el("div", {role: "rowgroup", class: "top-rows"}, heads), body);
    host.addEventListener("scroll", () => { painting ||= requestAnimationFrame(paint); }, {passive: true});
    host.addEventListener("keydown", onKey);
    host.addEventListener("click", event => press(event.target.closest("[data-row]")));
    new ResizeObserver(() => { painting ||= requestAnimationFrame(paint); }).observe(host);
  }

  // Show another selection, order or measure.
  function update(selection, state) {
    const held = host.contains(document.activeElement);
    [shown, show] = [selection, state.show];
    const widths = shown.columns.map(column => (Data.columns[column].tried ? "var(--cell)" : "var(--narrow)"));
    const template = ["var(--head)", ...widths].join(" ");
    heads.replaceChildren(head(0, "Model", `${shown.rows.length} of ${selection.total}`, "model", state.sort), ...shown.columns.map((column, at) => {
      const {target, detail, execution, id} = Data.columns[column];
      const told = [detail, execution === "hardware" ? "" : execution].filter(Boolean).join(", ");
      return head(at + 1, target, told, id, state.sort);
    }));
    host.style.setProperty("--template", template);
    host.setAttribute("aria-rowcount", shown.rows.length + 1);
    host.setAttribute("aria-colcount", shown.columns.length + 1);
    body.style.height = `${shown.rows.length * ROW}px`;
    for (const row of drawn.values()) row.remove();
    drawn.clear();
    body.replaceChildren(...(shown.rows.length === 0 ? [el("div", {class: "row", role: "row"}, el("div", {class: "empty", role: "gridcell"}, "No cell is like that."))] : []));
    place = {row: Math.min(Math.max(place.row, HEAD), shown.rows.length - 1), column: Math.min(place.column, shown.columns.length)};
    paint();
    if (held) focus(place.row, place.column);
  }

  function head(column, title, detail, id, sort) {
    const order = sort === id ? "ascending" : sort === `-${id}` ? "descending" : "none";
    const attributes = {role: "columnheader", "data-row": HEAD, "data-column": column, "data-sort": id, "aria-sort": order, "aria-colindex": column + 1, tabindex: tab(HEAD, column)};
    return el("div", {...attributes, class: column === 0 ? "first" : null}, el("span", {class: "title"}, title), el("small", null, detail));
  }

  const tab = (row, column) => (row === place.row && column === place.column ? 0 : -1);

  // Draw the rows in sight, and the one that has the place in the tab order, wherever it is.
  function paint() {
    painting = 0;
    const first = Math.max(0, Math.floor(host.scrollTop / ROW) - BEYOND);
    const last = Math.min(shown.rows.length, Math.ceil((host.scrollTop + host.clientHeight) / ROW) + BEYOND);
    for (const [row, element] of drawn) {
      if ((row < first || row >= last) && row !== place.row) {
        element.remove();
        drawn.delete(row);
      }
    }
    if (!drawn.has(place.row)) insert(place.row);
    for (let row = first; row < last; row += 1) if (!drawn.has(row)) insert(row);
  }

  // Rows stand in the document in their order, which is the one that a screen reader takes.
  function insert(row) {
    if (row < 0 || row >= shown.rows.length) return;
    let after = null;
    for (const [other, element] of drawn) if (other > row && (after === null || other < after.row)) after = {row: other, element};
    body.insertBefore(line(row), after?.element ?? null);
  }

  function line(at) {
    const row = shown.rows[at];
    const about = [Data.rows.settings(row), Text.spaced(Data.rows.family(row)), Data.rows.architecture(row)].filter(Boolean).join(" · ");
    const model = Data.rows.model(row);
    const label = el("div", {role: "rowheader", class: "first", "data-row": at, "data-column": 0, "aria-colindex": 1, tabindex: tab(at, 0), title: [model, Data.rows.hub(row), about].filter(Boolean).join("\n")},
      el("b", null, model), el("small", null, about));
    const element = el("div", {class: "row", role: "row", "aria-rowindex": at + 2}, label, shown.columns.map((column, index) => cell(Data.places[row][column], at, index + 1)));
    element.style.transform = `translateY(${at * ROW}px)`;
    drawn.set(at, element);
    return element;
  }

  function cell(number, row, column) {
    const attributes = {role: "gridcell", "data-row": row, "data-column": column, "aria-colindex": column + 1, tabindex: tab(row, column)};
    if (number < 0) return el("div", attributes);
    const state = Data.state(number);
    const [word, ...details] = told(number);
    const kind = shown.fits(number) ? state : "dimmed";
    return el("div", {...attributes, "data-cell": number, class: `opens ${kind}`, "aria-haspopup": "dialog"},
      el("span", {class: "word"}, Marks.shape(state), el("span", null, word)), details.length > 0 && el("small", null, details.join(" · ")));
  }

  // A cell's words: its verdict, or what it was asked to show; what it has no number for stays a verdict.
  function told(number) {
    const execution = Data.cells.execution(number);
    const how = execution === "hardware" ? [] : [execution];
    const about = Data.cells.contended(number) ? ["contended"] : [];
    const p50 = Data.cells.p50_ms(number);
    const speed = Data.cells.speed_up(number);
    const memory = Selection.memory(number);
    const passed = Data.cells.status(number) === "pass";
    if (show === "p50" && passed && p50 !== null) return [Text.ms(p50), ...how, ...about];
    if (show === "speed" && passed && speed !== null) return [Text.times(speed, Data.cells.speed_contended(number)), ...(Data.cells.speed_differs(number) ? [] : ["not told apart"])];
    if (show === "memory" && passed && memory !== null) return [Text.mib(memory), ...how];
    return Data.cells.label(number).split(" · ");
  }

  function press(element) {
    if (!element) return;
    focus(Number(element.dataset.row), Number(element.dataset.column));
    if (element.dataset.sort) act.sort(element.dataset.sort);
    else if (element.dataset.cell) act.open(Number(element.dataset.cell));
  }

  function onKey(event) {
    const page = Math.max(1, Math.floor(host.clientHeight / ROW) - 2);
    const [top, bottom, end] = [HEAD, shown.rows.length - 1, shown.columns.length];
    const {row, column} = place;
    const whole = event.ctrlKey || event.metaKey;
    const moves = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      PageUp: [Math.max(row - page, 0), column], PageDown: [row + page, column],
      Home: [whole ? 0 : row, 0], End: [whole ? bottom : row, end],
    };
    if (event.key in moves && !event.altKey) {
      const [to, along] = moves[event.key];
      event.preventDefault();
      focus(Math.min(Math.max(to, top), bottom), Math.min(Math.max(along, 0), end));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      press(event.target.closest("[data-row]"));
    }
  }

  const at = (row, column) => (row === HEAD ? heads : drawn.get(row))?.children[column] ?? null;

  // Move the place in the tab order, and bring it into sight.
  function focus(row, column) {
    const left = at(place.row, place.column);
    if (left) left.tabIndex = -1;
    place = {row, column};
    if (row >= 0) {
      const [above, below] = [row * ROW, (row + 1) * ROW - host.clientHeight + heads.offsetHeight];
      if (host.scrollTop > above) host.scrollTop = above;
      else if (host.scrollTop < below) host.scrollTop = below;
    }
    paint();
    const target = at(row, column);
    if (!target) return;
    target.tabIndex = 0;
    target.focus({preventScroll: true});
    target.scrollIntoView({block: "nearest", inline: "nearest"});
  }

  // Give the focus to a cell of the run, if it is shown.
  function focusCell(number) {
    const row = shown.rows.findIndex(each => Data.places[each].includes(number));
    if (row < 0) return false;
    focus(row, shown.columns.indexOf(Data.places[shown.rows[row]].indexOf(number)) + 1);
    return true;
  }

  return {mount, update, paint, focusCell};
})();
