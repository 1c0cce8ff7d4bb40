// One figure's axes, curves and points as SVG, drawn to the available width.

const MARGIN = { left: 46, right: 20, top: 38, bottom: 42 };
const SERIES = 5; // colours in the style sheet
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "12 4", "5 2 1.5 2 1.5 2", "1.5 2"];
// Five colours and seven dashes share no factor: the pairing repeats only after 35 models.

/** How many of the ascending radii are at least this large. */
function countReaching(radii, radius) {
  let low = 0;
  let high = radii.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (radii[middle] < radius) low = middle + 1;
    else high = middle;
  }
  return radii.length - low;
}

/** Scales of a figure: radii in units to x, fractions to y. */
function makeScales(width, limits) {
  const height = Math.round(Math.min(430, Math.max(250, width * 0.58)));
  const inner = {
    width: width - MARGIN.left - MARGIN.right,
    height: height - MARGIN.top - MARGIN.bottom,
  };
  return {
    width,
    height,
    limits,
    bottom: height - MARGIN.bottom,
    x: (radius) => MARGIN.left + (inner.width * radius) / limits.radius,
    y: (fraction) => MARGIN.top + inner.height * (1 - fraction / limits.accuracy),
    radiusAt: (x) => ((x - MARGIN.left) / inner.width) * limits.radius,
  };
}

/** Where the axes end: the same for both bounds, so that they can be compared by switching. */
function findLimits(run, units) {
  const curves = run.models.flatMap((model) => Object.values(model.curves)).filter(Boolean);
  const furthest = Math.max(
    ...curves.map((curve) => curve.radii.at(-1) ?? 0),
    ...run.attacks.map((point) => point.radius),
    units / 4,
  );
  const highest = Math.max(
    ...curves.map((curve) => curve.radii.length / run.count),
    ...run.attacks.map((point) => point.robust / point.count),
    0.2,
  );
  const quarter = units / 4;
  return {
    radius: quarter * Math.ceil((furthest + 1) / quarter), // the last step down stays in view
    accuracy: Math.ceil(5 * highest - 1e-9) / 5,
  };
}

function drawAxes(scales, units, title) {
  const { limits, x, y, bottom, width } = scales;
  const group = draw("g.axes");
  for (let fifth = 0; fifth <= Math.round(limits.accuracy * 5); fifth += 1) {
    const height = y(fifth / 5);
    group.append(
      draw("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: height, y2: height }),
      draw("text", { x: MARGIN.left - 8, y: height + 4, "text-anchor": "end" }, `${fifth * 20}%`),
    );
  }
  const quarters = (4 * limits.radius) / units;
  const step = (width - MARGIN.left) / quarters < 44 ? 2 : 1;
  for (let quarter = 0; quarter <= quarters; quarter += step) {
    const place = x((quarter * units) / 4);
    group.append(
      draw("line", { class: "tick", x1: place, x2: place, y1: bottom, y2: bottom + 4 }),
      draw("text", { x: place, y: bottom + 18, "text-anchor": "middle" }, (quarter / 4).toFixed(2)),
    );
  }
  group.append(
    draw(
      "text",
      { x: width - MARGIN.right, y: bottom + 36, "text-anchor": "end" },
      "ℓ₂ radius",
    ),
    draw("text", { x: 4, y: 12 }, title),
  );
  return group;
}

/** A curve that steps down at every radius; an image still counts at its own. */
function drawCurve(scales, radii, count, look) {
  const { x, y } = scales;
  const parts = [`M${x(0).toFixed(1)} ${y(radii.length / count).toFixed(1)}`];
  radii.forEach((radius, place) => {
    if (radius !== radii[place + 1]) {
      parts.push(`H${x(radius).toFixed(1)}V${y((radii.length - place - 1) / count).toFixed(1)}`);
    }
  });
  return draw("path", { ...look, d: parts.join("") });
}

const MARKS = [
  (size) => `M0 ${-size}L${size} 0L0 ${size}L${-size} 0Z`,
  (size) => `M${-size} ${size * 0.8}L0 ${-size}L${size} ${size * 0.8}Z`,
  (size) => `M${-size * 0.8} ${-size * 0.8}h${size * 1.6}v${size * 1.6}h${-size * 1.6}Z`,
  (size) => `M${-size} ${-size * 0.8}L0 ${size}L${size} ${-size * 0.8}Z`,
];

function drawMark({ mark, look }, x, y, size = 7) {
  return draw("path", {
    ...look,
    d: MARKS[mark % MARKS.length](size),
    transform: `translate(${x} ${y})`,
  });
}
