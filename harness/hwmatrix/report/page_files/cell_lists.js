// Lists of cells that templates name by index (data-cells): built when they are opened, since an error may have thousands.
const CellLists = (() => {
  const MOST = 1000;
  const {el} = Dom;

  function fill(details) {
    if (details.childElementCount > 1) return;
    const numbers = details.dataset.cells.split(" ").filter(Boolean).map(Number);
    const lines = numbers.slice(0, MOST).map(number => el("li", null,
      el("a", {href: Links.link({cell: Data.cells.key(number)})}, `${Data.cells.model(number)} on ${Data.cells.target(number)}`), ` ${Data.cells.label(number)}`));
    if (numbers.length > MOST) lines.push(el("li", null, `and ${Text.whole(numbers.length - MOST)} more`));
    details.append(el("ul", {tabindex: 0, "aria-label": "Cells"}, lines));
  }

  function mount() {
    document.addEventListener("toggle", event => {
      if (event.target.matches?.("details[data-cells]") && event.target.open) fill(event.target);
    }, true);
  }

  return {mount};
})();
