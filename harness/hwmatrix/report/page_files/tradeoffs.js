// Cells of one model compared in latency, memory and loss: the picture and the table of the chosen comparison.
const Tradeoffs = (() => {
  const {el} = Dom;
  let shown = null;

  function mount() {
    const pick = Dom.get("comparison");
    pick.append(...Data.tradeoffs.map(({title}) => el("option", {value: title}, title)));
    pick.addEventListener("change", () => Links.go({compare: pick.value}));
  }

  const precision = cell => {
    const [asked, chosen] = [Data.cells.dtype(cell), Data.cells.precision(cell)];
    return asked === "default" && chosen !== null ? `${asked} (${chosen})` : asked;
  };
  const called = cell => `${Data.cells.target(cell)} ${precision(cell)}`;
  const link = cell => el("a", {href: Links.link({cell: Data.cells.key(cell)})}, called(cell));
  const listed = cells => cells.flatMap((cell, at) => (at === 0 ? [link(cell)] : [", ", link(cell)]));

  // Show the comparison that the address names; the first if it names none.
  function update({view, compare}) {
    if (view !== "tradeoffs" || Data.tradeoffs.length === 0) return;
    const found = Data.tradeoffs.find(({title}) => title === compare) ?? Data.tradeoffs[0];
    if (found === shown) return;
    shown = found;
    Dom.get("comparison").value = found.title;
    Charts.fill("tradeoffs", found.cells.flatMap((cell, at) => points(found, cell, at)));
    Dom.get("compared").replaceChildren(table(found), leftOut(found));
  }

  function points(found, cell, at) {
    const row = {
      target: Data.cells.target(cell), precision: precision(cell), loss: found.loss[at], ms: Data.cells.p50_ms(cell), MiB: found.memory[at],
      unbeaten: found.beaten_by[at].length === 0, "beaten by": found.beaten_by[at].map(called).join(", "),
    };
    return [["p50 ms", row.ms], [found.memory_word, row.MiB]].map(([panel, value]) => ({panel, value, ...row}));
  }

  function table(found) {
    const rows = found.cells.map((cell, at) => [
      link(cell), `${Data.cells.contended(cell) ? "≈" : ""}${Text.number(Data.cells.p50_ms(cell))}`, Text.whole(found.memory[at]), Text.scientific(found.loss[at]),
      Text.percent(Data.cells.quality(cell)), found.beaten_by[at].length === 0 ? el("strong", null, "no other") : listed(found.beaten_by[at]),
    ]);
    const word = found.memory_word.charAt(0).toUpperCase() + found.memory_word.slice(1);
    return Dom.table(["Target and precision", "p50 ms", word, "Loss", "Task", "Beaten by"], rows, [1, 2, 3, 4]);
  }

  const leftOut = ({left_out}) => (left_out.length === 0 ? "" : el("p", {class: "hint"}, "Passed, but not compared: ", left_out.flatMap(([cell, why], at) => [at === 0 ? "" : ", ", link(cell), ` (${why})`]), "."));

  return {mount, update};
})();
