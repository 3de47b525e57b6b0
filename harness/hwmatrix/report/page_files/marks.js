// Shapes that stand for verdicts (defined in marks.svg), and the times at which the page was ready: window.hwmatrixPage has them.
const Marks = (() => {
  const times = {};
  window.hwmatrixPage = {times};

  const shape = state => Dom.svg("svg", {class: `mark ${state}`, "aria-hidden": "true"}, Dom.svg("use", {href: `#mark-${state}`}));

  // Milliseconds since the navigation began, recorded once.
  function reached(name) {
    times[name] ??= performance.now();
  }

  // How long the last key in the search, or choice of a filter, took until the rows were updated, and until they were painted.
  function filtered(started) {
    times.filtered_ms = performance.now() - started;
    times.painted_ms = null;
    reached("first_filtered");
    requestAnimationFrame(() => setTimeout(() => { times.painted_ms = performance.now() - started; }));
  }

  return {shape, reached, filtered};
})();
