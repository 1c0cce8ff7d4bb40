// One image of the gallery: its class, a model's prediction, the votes, the outcomes of attacks.

const VERDICT_MARKS = { correct: "✓", wrong: "✗", abstained: "–" };

function makeCard(run, model, position, units) {
  const { gallery } = run;
  const answer = gallery.answers[model];
  const [label, prediction] = [gallery.label[position], answer.prediction[position]];
  const verdict = judge(prediction, label);
  return make(
    "li",
    { class: `card ${verdict}` },
    makePicture(run, position),
    make(
      "div",
      make("p.index", `image ${gallery.index[position]}`),
      make("p.truth", run.classes[label]),
      makeVerdict(verdict, run.classes[prediction]),
      makeRadius(verdict, answer.radius[position], units),
    ),
    makeVotes(run, answer.votes[position], answer.n[position], label),
    makeOutcomes(run, model, position),
  );
}

function makePicture(run, position) {
  const { gallery } = run;
  const picture = gallery.picture[position];
  const name = `image ${gallery.index[position]}: ${run.classes[gallery.label[position]]}`;
  if (picture === null) {
    return make("div", {
      class: "picture gap",
      role: "img",
      "aria-label": `${name}, not available`,
      title: "A run has no pixels: sween report reads them with --data-root or --dataset",
    }, "image not available");
  }
  return make("img", {
    class: gallery.reduced ? "picture smooth" : "picture",
    src: gallery.pictures[picture],
    alt: name,
    width: "96",
    height: "96",
    decoding: "async",
  });
}

function makeVerdict(verdict, answered) {
  const text = { correct: "correct", wrong: `wrong: ${answered}`, abstained: "abstained" }[verdict];
  return make(
    "p.verdict",
    make("span", { "aria-hidden": "true" }, `${VERDICT_MARKS[verdict]} `),
    text,
  );
}

function makeRadius(verdict, radius, units) {
  if (verdict === "abstained") return make("p.radius", "no radius");
  return make("p.radius", "radius ", make("b", radiusText(radius, units)));
}

function makeVotes(run, votes, n, label) {
  const rows = [];
  for (let place = 0; place < votes.length; place += 2) {
    const [name, share] = [votes[place], n ? votes[place + 1] / n : 0];
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", share);
    const title = `${countText(votes[place + 1])} of ${countText(n)} votes`;
    rows.push(
      make(
        "li",
        { class: name === label ? "true-class" : null, title },
        make("span.name", run.classes[name]),
        bar,
        make("span.share", `${percentText(share)}%`),
      ),
    );
  }
  return make("ul", { class: "votes", "aria-label": "Votes" }, ...rows);
}

/** One line per attack on this model: its outcomes, and at which radii. */
function makeOutcomes(run, model, position) {
  const lines = new Map();
  for (const [group, outcome, prediction, alarm] of run.gallery.outcomes[position] ?? []) {
    const { attack, eps, model: attacked } = run.attacks[group];
    if (attacked !== run.models[model].name) continue;
    if (!lines.has(attack)) lines.set(attack, { results: new Map(), broken: false, alarms: [] });
    const line = lines.get(attack);
    const name = run.gallery.outcome_names[outcome];
    const result = name === "broken" ? `broken to ${run.classes[prediction]}` : name;
    line.results.set(result, [...(line.results.get(result) ?? []), eps]);
    line.broken ||= name === "broken";
    if (alarm) line.alarms.push(eps);
  }
  if (!lines.size) return null;
  const rows = [...lines].map(([attack, line]) => makeOutcome(attack, line));
  return make("ul", { class: "outcomes", "aria-label": "Under attack" }, ...rows);
}

function makeOutcome(attack, { results, broken, alarms }) {
  const before = { wrong: "wrong when clean", declined: "abstained when clean" };
  const parts = [...results].map(
    ([result, radii]) => before[result] ?? `${result} at ε ${radii.join(", ")}`,
  );
  const alarm = alarms.length
    ? make("strong", ` Alarm at ε ${alarms.join(", ")}: adversarial inside the certified radius`)
    : null;
  const name = make("b", `${attack}: `);
  return make("li", { class: broken || alarm ? "broken" : null }, name, parts.join("; "), alarm);
}
