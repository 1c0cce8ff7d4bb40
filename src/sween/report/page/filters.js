// The gallery's filters. Changing one redraws the gallery; changing the run redraws them too.

const ANSWERS = ["all", "correct", "wrong", "abstained"];
const ORDERS = {
  index: "index",
  largest: "largest radius first",
  smallest: "smallest radius first",
};

function makeFilters(runs, state, units, { openRun, refresh }) {
  const { run } = state;
  const change = (name) => (value) => {
    state[name] = value;
    refresh();
  };
  const numbered = (names) => names.map((name, number) => [number, name]);
  const classes = numbered(run.classes).filter(([number]) => run.gallery.label.includes(number));
  const filters = [
    makeSelect("Model", numbered(run.models.map(({ name }) => name)), state.model, change("model")),
    makeSelect("True class", [[null, "all classes"], ...classes], state.label, change("label")),
    makeSelect("Order", Object.entries(ORDERS), state.order, change("order")),
    makeAnswers(state, change("answer")),
    makeSlider(state, units, change("least")),
  ];
  if (runs.length > 1) {
    const names = numbered(runs.map(({ name }) => name));
    const choose = (number) => {
      openRun(runs[number]);
      document.getElementById("gallery-run").focus(); // the old one was replaced
    };
    filters.unshift(makeSelect("Run", names, runs.indexOf(run), choose, "gallery-run"));
  }
  return filters;
}

function makeSelect(label, choices, chosen, choose, id = newId("select")) {
  const options = choices.map(([value, text], number) =>
    make("option", { value: String(number), selected: value === chosen }, text),
  );
  const select = make(
    "select",
    { id, onchange: () => choose(choices[select.selectedIndex][0]) },
    ...options,
  );
  return make("div.filter", make("label", { for: id }, label), select);
}

function makeAnswers(state, choose) {
  const choices = ANSWERS.map((value) => ({ value, text: value }));
  return make(
    "div.filter",
    make("span", { class: "label", "aria-hidden": "true" }, "Prediction"),
    makeSwitch("Prediction", choices, state.answer, choose),
  );
}

function makeSlider(state, units, choose) {
  const id = newId("slider");
  const step = units / 20;
  const radii = state.run.gallery.answers.flatMap(({ radius }) => radius);
  const largest = radii.reduce((one, other) => Math.max(one, other), 0);
  const output = make("output", { for: id });
  const say = (least) => {
    output.textContent = (least / units).toFixed(2);
    slider.setAttribute("aria-valuetext", `radius at least ${output.textContent}`);
  };
  const slider = make("input", {
    id,
    type: "range",
    min: "0",
    max: String(step * Math.max(1, Math.floor(largest / step))),
    step: String(step),
    value: "0",
    oninput: () => {
      say(Number(slider.value));
      choose(Number(slider.value));
    },
  });
  say(0);
  return make("div.filter.wide", make("label", { for: id }, "Radius at least ", output), slider);
}
