// The tooltip of the mark under the pointer. Vega passes names and values, which are shown as text.
const Tooltip = (() => {
  let tip = null;

  function handle(_handler, event, _item, value) {
    tip?.remove();
    tip = null;
    if (value === null || value === undefined || value === "") return;
    const entries = typeof value === "object" ? Object.entries(value) : [["", String(value)]];
    tip = Dom.el("div", {class: "tip"}, Dom.el("dl", null, entries.map(([name, told]) => [Dom.el("dt", null, name), Dom.el("dd", null, String(told))])));
    document.body.append(tip);
    const {offsetWidth, offsetHeight} = tip;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - offsetHeight - 4))}px`;
  }

  return {handle};
})();
