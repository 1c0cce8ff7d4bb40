// A figure's plot: the visible curves, and a radius to read them at, set by pointer or keys.

const STEP = 100; // the radius moves by hundredths; every value read is exact there

/** A series' value at the chosen radius, null where it has none there. */
function valueAt(state, series) {
  if (series.model) {
    const { radii } = series.model.curves[state.bound];
    return countReaching(radii, state.radius) / state.run.count;
  }
  const point = series.points.find(({ radius }) => radius === state.radius);
  return point ? point.robust / point.count : null;
}

function visible(state) {
  return state.series.filter((series) => !state.hidden.has(series.key));
}

function makePlot(state) {
  const { units, limits } = state;
  const svg = draw("svg", { "aria-hidden": "true", focusable: "false" });
  const element = make(
    "div",
    {
      class: "plot",
      tabindex: "0",
      role: "slider",
      "aria-label": `Radius at which to read the curves of ${state.run.name}`,
      "aria-valuemin": "0",
      "aria-valuemax": String(limits.radius / units),
    },
    svg,
  );
  const title = state.run.attacks.length ? "accuracy, certified or under attack" : "certified accuracy";
  let scales = null;
  let guide = null;

  // Attacked radii between the steps can be reached too: a mark is read at its own radius.
  const between = state.run.attacks.map((point) => point.radius).filter((at) => at % STEP);

  function move(radius) {
    const step = Math.round(radius / STEP) * STEP;
    const near = between.find((at) => Math.abs(at - radius) < Math.abs(step - radius));
    state.radius = Math.min(limits.radius, Math.max(0, near ?? step));
    state.updateRadius();
  }

  /** The next step up (1) or down (-1), or an attacked radius before it. */
  function next(way) {
    const step = way * (Math.floor((way * state.radius) / STEP) + 1) * STEP;
    const before = between.filter((at) => way * (at - state.radius) > 0 && way * (step - at) > 0);
    return way * Math.min(...before.map((at) => way * at), way * step);
  }

  function resize() {
    const width = Math.round(element.clientWidth);
    if (width && width !== scales?.width) update();
  }

  function update() {
    scales = makeScales(Math.round(element.clientWidth) || 600, limits);
    svg.setAttribute("viewBox", `0 0 ${scales.width} ${scales.height}`);
    svg.setAttribute("height", scales.height);
    guide = draw("g.guide");
    svg.replaceChildren(drawAxes(scales, units, title), drawSeries(state, scales), guide);
    updateGuide();
  }

  function updateGuide() {
    drawGuide(state, scales, guide);
    const radius = chosenText(state.radius, units);
    const values = visible(state).map((series) => {
      const value = valueAt(state, series);
      return value === null ? null : `${series.name} ${percentText(value)}%`;
    });
    element.setAttribute("aria-valuenow", radius);
    const text = [`radius ${radius}`, ...values.filter(Boolean)].join(", ");
    element.setAttribute("aria-valuetext", text);
  }

  const toRadius = (event) => scales.radiusAt(event.clientX - svg.getBoundingClientRect().left);
  element.addEventListener("pointermove", (event) => move(toRadius(event)));
  element.addEventListener("pointerdown", (event) => move(toRadius(event)));
  element.addEventListener("keydown", (event) => {
    const by = (way) => (event.shiftKey ? state.radius + way * 10 * STEP : next(way));
    const target = {
      ArrowLeft: by(-1),
      ArrowDown: by(-1),
      ArrowRight: by(1),
      ArrowUp: by(1),
      PageDown: state.radius - units / 4,
      PageUp: state.radius + units / 4,
      Home: 0,
      End: limits.radius,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    move(target);
  });
  state.updateGuide = updateGuide;
  return { element, update, resize };
}

function drawSeries(state, scales) {
  const group = draw("g");
  // Backwards, so that the ensemble, first in the legend, lies in front.
  for (const series of visible(state).reverse()) {
    if (series.model) {
      const { radii } = series.model.curves[state.bound];
      group.append(drawCurve(scales, radii, state.run.count, series.look));
    }
  }
  for (const series of visible(state)) {
    for (const point of series.points ?? []) {
      const [x, y] = [scales.x(point.radius), scales.y(point.robust / point.count)];
      group.append(drawMark(series, x, y));
    }
  }
  return group;
}

function drawGuide(state, scales, guide) {
  const x = scales.x(state.radius);
  const label = `r = ${chosenText(state.radius, state.units)}`;
  const edge = x > scales.width - 60 ? "end" : x < MARGIN.left + 30 ? "start" : "middle";
  guide.replaceChildren(
    draw("line", { x1: x, x2: x, y1: MARGIN.top, y2: scales.bottom }),
    draw("text", { x, y: MARGIN.top - 8, "text-anchor": edge }, label),
  );
  for (const series of visible(state).reverse()) {
    if (!series.model) continue;
    const y = scales.y(valueAt(state, series));
    guide.append(draw("circle", { class: series.look.class, cx: x, cy: y, r: 4 }));
  }
}
