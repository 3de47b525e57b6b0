// How far a cell got: its stages in order, the milliseconds in each, and where it ended.
const Funnel = (() => {
  const {el} = Dom;

  function draw(cell) {
    const reached = Data.stages.indexOf(cell.stage);
    const others = cell.new_tokens ? ["run"] : ["prefill", "decode"];
    return el("ol", {class: "funnel"}, Data.stages.map((stage, at) => {
      if (others.includes(stage)) return null;
      const took = cell.steps?.[at] ?? null;
      const ended = stage === cell.ended;
      const entered = took !== null || at <= reached;
      const kind = ended ? "ended" : entered ? "passed" : "never";
      const time = took === null ? (entered ? "not timed" : cell.status === "pass" ? "not requested" : "not reached") : Text.ms(took);
      return el("li", {class: kind}, el("strong", null, stage), el("span", null, ended ? `${time}, ended here` : time));
    }).filter(Boolean));
  }

  return {draw};
})();
