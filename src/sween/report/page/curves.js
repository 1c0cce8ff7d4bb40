// One figure per run: its curves under either bound, and accuracy under attack.

const BOUND_NAMES = { cohen: "Cohen", "two-class": "two-class" };

function makeFigure(run, units) {
  const state = {
    run,
    units,
    bound: run.bound,
    hidden: new Set(),
    limits: findLimits(run, units),
    radius: 0,
    series: makeSeries(run),
  };
  state.radius = Math.min(units / 2, state.limits.radius);
  const plot = makePlot(state);
  const legend = makeLegend(state);
  const update = () => {
    plot.update();
    legend.update();
  };
  state.update = update;
  const figure = make(
    "article.measured",
    makeRunHeading(run),
    makeBoundSwitch(state),
    make("div.figure", plot.element, legend.element),
    makeAttackNote(run),
  );
  update();
  new ResizeObserver(plot.resize).observe(plot.element);
  return figure;
}

function makeRunHeading(run) {
  const facts = [
    `${run.dataset}, ${countText(run.count)} images`,
    `σ = ${run.sigma}`,
    `n = ${run.n}`,
    `α = ${run.alpha}`,
  ];
  return make(
    "header",
    make("h3", run.name),
    make("p.facts", facts.join(" · ")),
    ...run.warnings.map((warning) => make("p.warning", warning)),
    run.lead && make("p", run.lead),
  );
}

function makeAttackNote(run) {
  if (!run.attacks.length) return null;
  const fewest = Math.min(...run.attacks.map((point) => point.count));
  const some = fewest < run.count ? ", on fewer images where the legend says so" : "";
  return make(
    "p.note",
    `The points are accuracy under attack${some}; see the `,
    make("a", { href: "#tables" }, "tables"),
    ".",
  );
}

function makeBoundSwitch(state) {
  const { run } = state;
  const note = make("p", { class: "note", role: "status" });
  const say = () => {
    note.textContent =
      state.bound === run.bound
        ? "The bound that this run was certified with."
        : "The same votes under the other bound. Each holds on its own, not both at once.";
  };
  const choices = Object.entries(BOUND_NAMES).map(([value, text]) => {
    const missing = run.models.some((model) => model.curves[value] === null);
    return { value, text, disabled: missing, note: missing ? "not available for this run" : null };
  });
  say();
  const choose = (bound) => {
    state.bound = bound;
    say();
    state.update();
  };
  return make(
    "div.bounds",
    make("span", { class: "label", "aria-hidden": "true" }, "Bound"),
    makeSwitch("Bound", choices, run.bound, choose),
    note,
  );
}
