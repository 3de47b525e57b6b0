// The matrix as a virtualized grid: only visible rows are in the document, so that hundreds of models scroll like ten.
// Keyboard and roles follow the ARIA grid pattern: one cell is in the tab order, and arrow keys move to another.
const Grid = (() => {
  const ROW = 44; // pixels, as in grid.css
  const BEYOND = 6; // rows drawn above and below the visible ones
  const HEAD = -1; // the row of column headers
  const {el} = Dom;
  const empty = el("div", {class: "row", role: "row"}, el("div", {class: "empty", role: "gridcell"}, "No cell matches."));
  let drawn = new Map(); // by index, the elements of rows in the document
  let made = new Map(); // by row of the run, all elements made so far: a search reuses most of them
  let host, heads, body, act;
  let shown = {rows: [], columns: [], fits: () => true};
  let show = "verdict";
  let place = {row: 0, column: 1};
  let painting = 0;
  let kind = ""; // what determines the look of rows, besides their selection

  // `act` has the actions of a click: open(cell) and sort(id).
  function mount(element, actions) {
    [host, act] = [element, actions];
    heads = el("div", {class: "row heads", role: "row", "aria-rowindex": 1, "data-row": HEAD});
    body = el("div", {class: "body", role: "rowgroup"});
    host.append(el("div", {role: "rowgroup", class: "top-rows"}, heads), body);
    host.addEventListener("scroll", () => { painting ||= requestAnimationFrame(paint); }, {passive: true});
    host.addEventListener("keydown", onKey);
    host.addEventListener("click", event => press(event.target.closest("[data-column]")));
    new ResizeObserver(() => { painting ||= requestAnimationFrame(paint); }).observe(host);
  }

  // Show another selection, order or measure.
  function update(selection, state) {
    const held = host.contains(document.activeElement);
    leave();
    [shown, show] = [selection, state.show];
    const wanted = JSON.stringify([selection.columns, state.show, state.sort, state.status, state.target, state.precision, state.execution, state.inputs, state.path]);
    if (wanted !== kind) rebuild(state.sort);
    kind = wanted;
    heads.firstChild.lastChild.textContent = `${shown.rows.length} of ${selection.total}`;
    host.setAttribute("aria-rowcount", shown.rows.length + 1);
    body.style.height = `${shown.rows.length * ROW}px`;
    place = {row: Math.min(Math.max(place.row, HEAD), shown.rows.length - 1), column: Math.min(place.column, shown.columns.length)};
    paint();
    at(place.row, place.column).tabIndex = 0;
    if (held) focus(place.row, place.column);
  }

  // Rebuild the headers and every row, for other columns, order or measure.
  function rebuild(sort) {
    made = new Map();
    const widths = shown.columns.map(column => (Data.columns[column].tried ? "var(--cell)" : "var(--narrow)"));
    heads.replaceChildren(head(0, "Model", "", "model", sort), ...shown.columns.map((column, index) => {
      const {target, detail, execution, id} = Data.columns[column];
      return head(index + 1, target, [detail, execution === "hardware" ? "" : execution].filter(Boolean).join(", "), id, sort);
    }));
    host.style.setProperty("--template", ["var(--head)", ...widths].join(" "));
    host.setAttribute("aria-colcount", shown.columns.length + 1);
  }

  function head(column, title, detail, id, sort) {
    const order = sort === id ? "ascending" : sort === `-${id}` ? "descending" : "none";
    const attributes = {role: "columnheader", "data-column": column, "data-sort": id, "aria-sort": order, "aria-colindex": column + 1, tabindex: -1};
    return el("div", {...attributes, class: column === 0 ? "first" : null}, el("span", {class: "title"}, title), el("small", null, detail));
  }

  // Draw the visible rows, and the row with the cell in the tab order. They are in the document in their order, for screen readers;
  // existing ones stay, to keep the layout cheap.
  function paint() {
    painting = 0;
    const first = Math.max(0, Math.floor(host.scrollTop / ROW) - BEYOND);
    const last = Math.min(shown.rows.length, Math.ceil((host.scrollTop + host.clientHeight) / ROW) + BEYOND);
    const wanted = Array.from({length: Math.max(0, last - first)}, (_, index) => first + index);
    if (place.row >= last && place.row < shown.rows.length) wanted.push(place.row);
    else if (place.row >= 0 && place.row < first) wanted.unshift(place.row);
    drawn = new Map(wanted.map(number => [number, line(number)]));
    const there = new Set(shown.rows.length === 0 ? [empty] : drawn.values());
    for (const child of [...body.children]) if (!there.has(child)) child.remove();
    let next = body.firstElementChild;
    for (const element of there) {
      if (element === next) next = next.nextElementSibling;
      else body.insertBefore(element, next);
    }
  }

  function line(number) {
    const row = shown.rows[number];
    if (!made.has(row)) {
      made.set(row, el("div", {class: "row", role: "row"}, label(row), shown.columns.map((column, index) => cell(Data.places[row][column], index + 1))));
    }
    const element = made.get(row);
    if (element.dataset.row !== String(number)) {
      element.dataset.row = number;
      element.setAttribute("aria-rowindex", number + 2);
      element.style.transform = `translateY(${number * ROW}px)`;
    }
    return element;
  }

  function label(row) {
    const about = [Data.rows.settings(row), Text.spaced(Data.rows.family(row)), Data.rows.architecture(row)].filter(Boolean).join(" · ");
    const model = Data.rows.model(row);
    const whole = [model, Data.rows.hub(row), about].filter(Boolean).join("\n");
    return el("div", {role: "rowheader", class: "first", "data-column": 0, "aria-colindex": 1, tabindex: -1, title: whole}, el("b", null, model), el("small", null, about));
  }

  function cell(number, column) {
    const attributes = {role: "gridcell", "data-column": column, "aria-colindex": column + 1, tabindex: -1};
    if (number < 0) return el("div", attributes);
    const state = Data.state(number);
    const [word, ...details] = told(number);
    const looks = shown.fits(number) ? state : "dimmed";
    return el("div", {...attributes, "data-cell": number, class: `opens ${looks}`, "aria-haspopup": "dialog"},
      el("span", {class: "word"}, Marks.shape(state), el("span", null, word)), details.length > 0 && el("small", null, details.join(" · ")));
  }

  // A cell's words: the selected measure, or its verdict if it has no such number.
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
    focus(Number(element.parentElement.dataset.row), Number(element.dataset.column));
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
      press(event.target.closest("[data-column]"));
    }
  }

  const at = (row, column) => (row === HEAD ? heads : drawn.get(row))?.children[column] ?? null;

  function leave() {
    const left = at(place.row, place.column);
    if (left) left.tabIndex = -1;
  }

  // Move the place in the tab order, and scroll it into view.
  function focus(row, column) {
    leave();
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
