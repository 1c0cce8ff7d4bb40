// A figure's legend: its entries are buttons that toggle curves and show their values.

/** Everything with a legend entry: models as the report's figures order them, then attacks. */
function makeSeries(run) {
  const look = ({ series }) =>
    series === null
      ? { class: "curve ensemble" }
      : {
          class: `curve series-${series % SERIES}`,
          "stroke-dasharray": DASHES[series % DASHES.length] || null,
        };
  const models = run.models
    .toSorted((one, other) => one.rank - other.rank)
    .map((model) => ({ key: `model ${model.name}`, name: model.name, model, look: look(model) }));
  // Each attack has its own marker, in the colour of the attacked model.
  const kinds = [...new Set(run.attacks.map(({ attack }) => attack))];
  const keys = run.attacks.map(({ model, attack }) => JSON.stringify([model, attack]));
  const attacks = [...new Set(keys)].map((key) => {
    const [model, attack] = JSON.parse(key);
    const points = run.attacks.filter((point) => point.model === model && point.attack === attack);
    const fewer = points[0].count === run.count ? "" : `, ${points[0].count} images`;
    const own = models.find(({ name }) => name === model).look.class.replace("curve", "mark");
    const name = `${model} under ${attack} attack${fewer}`;
    return { key, name, points, mark: kinds.indexOf(attack), look: { class: own } };
  });
  return [...models, ...attacks];
}

function makeLegend(state) {
  const heading = make("span");
  const entries = state.series.map((series) => makeEntry(state, series));
  const element = make(
    "div.legend",
    make("p.legend-head", make("span", "Curve"), make("span", "ACR"), heading),
    make("ul", ...entries.map((entry) => make("li", entry.button))),
  );

  function updateRadius() {
    heading.textContent = `at ${chosenText(state.radius, state.units)}`;
    for (const entry of entries) entry.update();
    state.updateGuide();
  }

  state.updateRadius = updateRadius;
  return { element, update: updateRadius };
}

/** A button that shows or hides its curve, with the curve's values in it. */
function makeEntry(state, series) {
  const acr = make("span.value.acr");
  const value = make("span.value.at");
  const swatch = draw("svg", { class: "swatch", viewBox: "0 0 30 12", "aria-hidden": "true" });
  swatch.append(
    series.model
      ? draw("path", { ...series.look, d: "M0 6H30" })
      : drawMark(series, 15, 6, 5),
  );
  const button = make(
    "button",
    {
      type: "button",
      "aria-pressed": "true",
      class: series.model?.kind === "ensemble" ? "ensemble" : null,
      onclick: () => {
        if (!state.hidden.delete(series.key)) state.hidden.add(series.key);
        state.update();
      },
    },
    swatch,
    make("span.name", series.name),
    acr,
    value,
  );

  function update() {
    const shown = !state.hidden.has(series.key);
    const now = shown ? valueAt(state, series) : null;
    button.setAttribute("aria-pressed", String(shown));
    acr.textContent = series.model ? series.model.curves[state.bound].acr : "";
    value.textContent = now === null ? "–" : `${percentText(now)}%`;
  }

  return { button, update };
}
