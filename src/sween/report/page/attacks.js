// What attacks did to a run's models, in numbers.

const ATTACK_HEADINGS = [
  "Model",
  "attack",
  "ε",
  "images",
  "attacked accuracy %",
  "certified % on the same images",
  "broken %",
  "abstained %",
  "alarms",
];

function makeAttackTable(run) {
  if (!run.attacks.length) return null;
  const rows = run.attacks.map(({ cells, alarms }) =>
    make(
      "tr",
      { class: alarms ? "alarm" : null },
      ...cells.map((text, place) => make("td", { class: place < 2 ? "text" : "number" }, text)),
    ),
  );
  const head = ATTACK_HEADINGS.map((text, place) =>
    make("th", { scope: "col", class: place < 2 ? "text" : "number" }, text),
  );
  const table = make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows),
  );
  return make(
    "div",
    { class: "attacks" },
    make("h4", {}, "Under attack"),
    make(
      "p",
      { class: "note" },
      "Attacked accuracy counts images answered rightly and not led to another class; an " +
        "abstention is no break. It is a ceiling: an attack that fails proves nothing. Certified " +
        "accuracy is a floor. An alarm is an answer that changed inside its certified radius.",
    ),
    make(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `Attacks on ${run.name}` },
      table,
    ),
  );
}
