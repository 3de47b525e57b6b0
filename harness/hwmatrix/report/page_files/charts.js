// Charts: Vega-Lite specifications in the page, drawn when their view is opened. Their expressions are interpreted, not compiled,
// because the page's policy forbids code from text.
const Charts = (() => {
  const MOST_ROWS = 500;
  const NARROW = 640; // width in pixels of a figure below which its chart is narrower
  const DARK = {
    text: "#e6edf3", muted: "#a0aab5", grid: "#343c46",
    category: ["#56b4e9", "#f08a4b", "#35c296", "#e59ac2", "#9cc9f5", "#d9b44a", "#aab2bb", "#f5f5f5"],
  };
  const {el} = Dom;
  let specs = null;
  let loaded = false;

  // The library is 0.9 MB of script, which stays text until the first chart.
  function library() {
    if (!loaded) {
      document.body.append(Object.assign(document.createElement("script"), {textContent: Dom.get("drawing").textContent}));
      loaded = true;
    }
    return window.hwmatrixDraw;
  }

  function read() {
    specs ??= JSON.parse(Dom.get("specs").textContent);
    return specs;
  }

  function configured(config) {
    if (!Theme.dark()) return {...config, background: null};
    const {text, muted, grid, category} = DARK;
    const axis = {...config.axis, gridColor: grid, domainColor: grid, tickColor: grid, labelColor: text, titleColor: text};
    const header = {labelColor: text, titleColor: text};
    return {...config, background: null, axis, header, legend: {...config.legend, labelColor: text, titleColor: text}, title: {...config.title, color: text, subtitleColor: muted}, range: {category}, boxplot: {rule: {stroke: muted}}};
  }

  // Lines between rectangles get the background color of the page, and columns get colors that are visible on it.
  function onPage(value) {
    const paper = getComputedStyle(document.documentElement).backgroundColor;
    const light = read().config.range.category;
    const color = word => (Theme.dark() && light.includes(word) ? DARK.category[light.indexOf(word)] : word);
    const walk = (each, name) => {
      if (Array.isArray(each)) return each.map(part => walk(part, name));
      if (each !== null && typeof each === "object") return Object.fromEntries(Object.entries(each).map(([key, part]) => [key, walk(part, key)]));
      if (name === "stroke" && each === "white") return paper;
      return name === "range" ? color(each) : each;
    };
    return walk(value, "");
  }

  // Reduce the width of the plot and its labels in a narrow figure.
  function fitted(spec, width) {
    if (typeof spec.width !== "number" || width >= NARROW) return spec;
    const y = spec.encoding?.y;
    const encoding = y ? {...spec.encoding, y: {...y, axis: {...y.axis, labelLimit: 110}}} : spec.encoding;
    return {...spec, width: Math.max(160, width - 150), ...(encoding ? {encoding} : {})};
  }

  async function draw(figure) {
    const spec = read().charts[figure.dataset.chart];
    const place = figure.querySelector(".plot"); // Vega sets its own role on it
    const {datasets, ...rest} = spec;
    const shown = {...fitted(onPage(rest), figure.clientWidth), datasets, config: configured(read().config)};
    delete shown.title; // it is the figure's caption, to which the subtitle is added
    if (spec.title?.subtitle) caption(figure, spec.title.subtitle);
    try {
      figure.drawing?.finalize();
      figure.drawing = await library()(place, shown, {mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, tooltip: Tooltip.handle});
    } catch (error) {
      place.replaceChildren(el("p", {class: "nothing"}, `This chart cannot be drawn here: ${error.message}`));
      throw error;
    }
  }

  function caption(figure, subtitle) {
    const told = figure.querySelector("figcaption");
    if (told.childElementCount === 0) told.append(el("br"), el("small", null, subtitle));
  }

  // The numbers of a chart as a table.
  function tabulate(figure) {
    const place = figure.querySelector(".rows");
    if (place.childElementCount > 0) return;
    const {rows} = read().charts[figure.dataset.chart].datasets;
    const names = [...new Set(rows.flatMap(row => Object.keys(row)))];
    const told = value => (typeof value === "number" ? Text.number(value, 4) : value === null || value === undefined ? Text.NOTHING : String(value));
    const lines = rows.slice(0, MOST_ROWS).map(row => names.map(name => told(row[name])));
    const numeric = names.flatMap((name, column) => (typeof rows[0][name] === "number" ? [column] : []));
    place.append(Dom.table(names.map(Text.spaced), lines, numeric));
    if (rows.length > MOST_ROWS) place.append(el("p", {class: "hint"}, `${Text.whole(rows.length - MOST_ROWS)} more rows are drawn.`));
  }

  // Give a chart other rows. If it is drawn already, it is drawn again.
  function fill(name, rows) {
    read().charts[name].datasets = {rows};
    const figure = document.querySelector(`[data-chart="${name}"]`);
    figure.querySelector(".rows").replaceChildren();
    if (figure.querySelector("details").open) tabulate(figure);
    if (figure.dataset.drawn !== undefined) draw(figure);
  }

  const figures = view => [...Dom.get(`view-${view}`).querySelectorAll("[data-chart]")];

  // Draw the charts of a view that are not drawn yet. Resolves when all are drawn.
  async function open(view) {
    for (const figure of figures(view)) {
      if (figure.dataset.drawn === undefined) {
        figure.dataset.drawn = "";
        await draw(figure);
      }
    }
  }

  function mount() {
    document.addEventListener("toggle", event => {
      const figure = event.target.closest?.("[data-chart]");
      if (figure && event.target.open) tabulate(figure);
    }, true);
    Theme.onChange(() => {
      for (const figure of document.querySelectorAll("[data-drawn]")) delete figure.dataset.drawn;
      open(Links.state().view);
    });
  }

  return {mount, open, fill};
})();
