// The distribution of a cell's samples: the cumulative share by milliseconds, with a box plot below. The 21 quantiles come from the
// database. The slowest 5 % are described in words: if they were drawn, one outlier would leave no room for all the others.
const Distribution = (() => {
  const {svg} = Dom;
  const [HEIGHT, LEFT, RIGHT, TOP] = [190, 44, 14, 10];
  const [CURVE, BOX, AXIS] = [118, 142, 160]; // the base of the curve, the middle of the box, the axis
  const DRAWN = 19; // the 95th percentile, in steps of 5 %
  let width = 560;

  function draw(quantiles) {
    width = innerWidth < 640 ? 350 : 560;
    const [low, high] = [quantiles[0], quantiles[DRAWN]];
    const x = value => LEFT + (high === low ? 0.5 : (value - low) / (high - low)) * (width - LEFT - RIGHT);
    const y = twentieth => CURVE - (twentieth / DRAWN) * 0.95 * (CURVE - TOP);
    const points = quantiles.slice(0, DRAWN + 1).map((value, at) => `${x(value).toFixed(1)},${y(at).toFixed(1)}`).join(" ");
    const [q5, q25, q50, q75] = [1, 5, 10, 15].map(at => quantiles[at]);
    const label = `Distribution of samples: from ${Text.ms(low)}; a quarter within ${Text.ms(q25)}, half within ${Text.ms(q50)}, three quarters within ${Text.ms(q75)}, 95 % within ${Text.ms(high)}; the longest ${Text.ms(quantiles.at(-1))}`;
    const picture = svg("svg", {class: "spread", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label},
      guide(CURVE, "0 %"), guide(y(10), "50 %"), guide(y(DRAWN), "95 %"),
      svg("polyline", {class: "curve", points}),
      line("whisker", x(q5), x(q25)), line("whisker", x(q75), x(high)),
      svg("rect", {class: "box", x: x(q25), y: BOX - 8, width: Math.max(1, x(q75) - x(q25)), height: 16}),
      svg("line", {class: "median", x1: x(q50), x2: x(q50), y1: BOX - 11, y2: BOX + 11}),
      svg("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: AXIS, y2: AXIS}),
      ticks([low, high, q50, q25, q75], x));
    return [picture, Dom.el("p", {class: "hint"}, `Box: the middle half; whiskers: 5 % to 95 %. The slowest 5 % of the samples took up to ${Text.ms(quantiles.at(-1))}.`)];
  }

  const line = (kind, from, to) => svg("line", {class: kind, x1: from, x2: to, y1: BOX, y2: BOX});

  const guide = (height, told) => [
    svg("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: height, y2: height}),
    svg("text", {x: LEFT - 6, y: height + 4, "text-anchor": "end"}, told),
  ];

  // Leave out labels that would overlap or repeat another one: the first are the most important.
  function ticks(values, x) {
    const kept = [];
    for (const value of values) if (kept.every(other => Math.abs(x(other) - x(value)) > 80 && Text.ms(other) !== Text.ms(value))) kept.push(value);
    return kept.map(value => {
      const anchor = x(value) < LEFT + 30 ? "start" : x(value) > width - RIGHT - 30 ? "end" : "middle";
      return svg("text", {x: x(value), y: AXIS + 16, "text-anchor": anchor}, Text.ms(value));
    });
  }

  return {draw};
})();
