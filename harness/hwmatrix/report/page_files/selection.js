// Which rows and columns of the matrix are shown, and in which order.
const Selection = (() => {
  const OF_ROW = {family: Data.rows.family, architecture: Data.rows.architecture, size: Data.rows.size};
  const OF_COLUMN = {target: Data.cells.target, precision: Data.cells.dtype, execution: Data.cells.execution, inputs: Data.cells.inputs, path: Data.cells.path};
  const BY_ROW = {model: Data.rows.model, family: Data.rows.family, architecture: Data.rows.architecture, parameters: Data.rows.parameters};
  const SHOWN = {p50: Data.cells.p50_ms, speed: Data.cells.speed_up, memory: memory};
  const all = Data.places.map((_, row) => row);
  const searched = [];

  // A cell's peak on a device with its own memory, else what it added to its process.
  function memory(cell) {
    return Data.cells.device_peak_mb(cell) ?? Data.cells.delta_mb(cell);
  }

  function haystack(row) {
    searched[row] ??= ["model", "hub", "architecture", "family", "settings"].map(name => Data.rows[name](row) ?? "").join("\n").toLowerCase();
    return searched[row];
  }

  function tests(state, readers) {
    const asked = Object.entries(readers).filter(([name]) => state[name].length > 0);
    const wanted = asked.map(([name, read]) => [read, new Set(state[name])]);
    return number => wanted.every(([read, set]) => set.has(read(number)));
  }

  // Rows, columns, and whether a cell matches. A row is shown if any of its cells matches.
  function select(state) {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const rowFits = tests(state, OF_ROW);
    const placed = tests(state, OF_COLUMN);
    const statuses = new Set(state.status);
    const fits = cell => cell >= 0 && placed(cell) && (statuses.size === 0 || statuses.has(Data.cells.status(cell)));
    const named = all.filter(row => rowFits(row) && words.every(word => haystack(row).includes(word)));
    const restricted = ["target", "precision", "execution"].some(name => state[name].length > 0);
    const columns = Data.columns.map((_, column) => column)
      .filter(column => !restricted || named.some(row => Data.places[row][column] >= 0 && placed(Data.places[row][column])));
    const rows = named.filter(row => columns.some(column => fits(Data.places[row][column])));
    return {rows: sorted(rows, state), columns, fits, total: all.length};
  }

  // Sort by the shown value of a column, or by a property of the row. Rows without a value always come last.
  function sorted(rows, state) {
    const down = state.sort.startsWith("-");
    const name = down ? state.sort.slice(1) : state.sort;
    const column = Data.columns.findIndex(each => each.id === name);
    let value = BY_ROW[name];
    if (column >= 0) value = row => (Data.places[row][column] < 0 ? null : worth(Data.places[row][column], state.show));
    if (!value) return rows;
    const keys = new Map(rows.map(row => [row, value(row)]));
    return [...rows].sort((one, other) => {
      const [first, second] = [keys.get(one), keys.get(other)];
      if (first === null || second === null) return (first === null) - (second === null) || one - other;
      const order = typeof first === "string" ? first.localeCompare(second, "en", {numeric: true}) : first - second;
      return (down ? -order : order) || one - other;
    });
  }

  // A verdict's rank: the best come first, and among equals the fastest.
  function worth(cell, show) {
    if (show !== "verdict") return SHOWN[show](cell);
    return Data.cells.rank(cell) * 1e9 + (Data.cells.p50_ms(cell) ?? 9e8);
  }

  // What a filter offers: the values that occur, in their order in the run.
  function choices(name) {
    const read = OF_ROW[name];
    if (read) return [...new Set(all.map(read))];
    const of = {...OF_COLUMN, status: Data.cells.status}[name];
    return [...new Set(Data.places.flatMap(cells => cells.filter(cell => cell >= 0).map(of)))].filter(value => value !== null);
  }

  return {select, choices, memory};
})();
