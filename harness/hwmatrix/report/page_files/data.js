// The page's data: tables by column, unpacked on access (packing.py defines the format).
const Data = (() => {
  const found = JSON.parse(document.getElementById("data").textContent);

  function reader(packed) {
    if ("same" in packed) return () => packed.same;
    if ("words" in packed) return number => (packed.codes[number] < 0 ? null : packed.words[packed.codes[number]]);
    if ("pieces" in packed) return number => (packed.codes[number] < 0 ? null : packed.texts[packed.codes[number]].map(piece => packed.pieces[piece]).join(packed.between));
    return number => packed.values[number];
  }

  const readers = table => Object.fromEntries(Object.entries(table).map(([name, packed]) => [name, reader(packed)]));
  const {cells: places, ...described} = found.rows;
  const rows = readers(described);
  const cells = readers(found.cells);
  let byKey = null;

  // The cell that a link names, or null if there is none.
  function find(key) {
    if (byKey === null) {
      byKey = new Map();
      for (let number = 0; number < count; number += 1) byKey.set(cells.key(number), number);
    }
    return byKey.get(key) ?? null;
  }

  const packed = found.cells.key;
  const count = "same" in packed ? (packed.same === null ? 0 : 1) : (packed.values ?? packed.codes).length;
  const cell = number => Object.fromEntries(Object.entries(cells).map(([name, read]) => [name, read(number)]));

  // What a cell's shape and color stand for: its level, or its status if it has none.
  const state = number => cells.level(number) ?? cells.status(number);

  return {
    run: found.run,
    stages: found.stages,
    columns: found.columns,
    meanings: found.meanings,
    words: found.words,
    tradeoffs: found.tradeoffs,
    rows, places, cells, cell, count, find, state,
  };
})();
