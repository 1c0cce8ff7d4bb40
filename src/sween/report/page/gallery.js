// The gallery: which images are shown, in which order, and how many.

const CHUNK = 48; // images drawn at a time: the first paint must not wait for a thousand
const ABSTAIN = -1;

function makeGallery(runs, units) {
  const state = { run: null, model: 0, label: null, answer: "all", least: 0, order: "index" };
  const grid = make("ul.grid");
  const count = make("p", { class: "count", role: "status" });
  const more = make("div.more");
  const note = make("p.note");
  const filters = make("div.filters");
  let matching = [];

  function openRun(run) {
    const own = run.models.findIndex((model) => model.kind === "ensemble");
    Object.assign(state, { run, model: Math.max(0, own), label: null, answer: "all", least: 0 });
    note.textContent = describeRun(run);
    const longest = Math.max(...run.classes.map((name) => name.length));
    grid.style.setProperty("--longest-name", longest);
    filters.replaceChildren(...makeFilters(runs, state, units, { openRun, refresh }));
    refresh();
  }

  function refresh() {
    matching = choosePositions(state);
    grid.replaceChildren();
    showMore(CHUNK);
  }

  function showMore(number) {
    const start = grid.childElementCount;
    const cards = matching
      .slice(start, start + number)
      .map((position) => makeCard(state.run, state.model, position, units));
    grid.append(...cards);
    updateMore();
    return cards[0];
  }

  function updateMore() {
    const [shown, total] = [grid.childElementCount, state.run.count];
    const left = matching.length - shown;
    count.textContent =
      `${countText(matching.length)} of ${countText(total)} images` +
      (left ? `, the first ${countText(shown)} shown` : "");
    const button = (text, number) =>
      make("button", { type: "button", onclick: () => focusOn(showMore(number)) }, text);
    more.replaceChildren();
    if (left > CHUNK) more.append(button(`Show ${CHUNK} more`, CHUNK));
    if (left) more.append(button(`Show the remaining ${countText(left)}`, left));
  }

  openRun(runs[0]);
  return [note, filters, count, grid, more];
}

/** Focus the first new card: the button that was pressed is gone, and reading continues there. */
function focusOn(card) {
  card.setAttribute("tabindex", "-1");
  card.focus({ preventScroll: true });
}

function describeRun(run) {
  const { gallery } = run;
  const parts = [
    `Radii under the ${BOUND_NAMES[run.bound] ?? run.bound} bound, rounded down. The bars are the ` +
      "shares of the votes behind the certificate; the true class is highlighted.",
  ];
  if (gallery.soft) {
    parts.push("This run certifies with soft votes: the hard votes shown are for comparison only.");
  }
  if (gallery.reduced) parts.push("Larger images are downscaled.");
  if (gallery.shape !== null) {
    const [channels, height, width] = gallery.shape;
    const size = channels * height * width;
    const each = (0.5 / Math.sqrt(size)) * 100;
    parts.push(
      `For scale: a perturbation of ℓ₂ norm 0.5 moves every value of an image of ${width} × ${height} pixels` +
        `${channels === 3 ? " in three channels" : ""} by ${each.toFixed(1)}% of the range from ` +
        "black to white, or fewer values by more.",
    );
  }
  return parts.join(" ");
}

/** Positions of the images that pass every filter, in the chosen order. */
function choosePositions(state) {
  const { gallery } = state.run;
  const { prediction, radius } = gallery.answers[state.model];
  const passes = (position) =>
    (state.label === null || gallery.label[position] === state.label) &&
    (state.answer === "all" ||
      state.answer === judge(prediction[position], gallery.label[position])) &&
    radius[position] >= state.least;
  const positions = [...gallery.index.keys()].filter(passes);
  if (state.order === "smallest") positions.sort((one, other) => radius[one] - radius[other]);
  if (state.order === "largest") positions.sort((one, other) => radius[other] - radius[one]);
  return positions;
}

function judge(prediction, label) {
  if (prediction === ABSTAIN) return "abstained";
  return prediction === label ? "correct" : "wrong";
}
