// Elements made of data. Text goes in as text: nothing on this page parses it as HTML.
const Dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  // Attributes whose value is null, undefined or false are left out; true sets an attribute without a value.
  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(2).filter(child => child !== null && child !== undefined && child !== false));
    return node;
  }

  const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
  const get = id => document.getElementById(id);

  // A table of texts. `numeric` has the indices of its right-aligned columns.
  function table(heads, rows, numeric = []) {
    const kind = column => (numeric.includes(column) ? "number" : null);
    return el("table", null,
      el("thead", null, el("tr", null, heads.map((head, column) => el("th", {scope: "col", class: kind(column)}, head)))),
      el("tbody", null, rows.map(row => el("tr", null, row.map((value, column) => el("td", {class: kind(column)}, value))))));
  }

  return {el, svg, get, table};
})();
