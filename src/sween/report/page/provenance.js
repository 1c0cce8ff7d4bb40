// Where the numbers come from: one block a run, closed until asked for.

function makeProvenance(run) {
  const sections = run.provenance.map(([title, values]) =>
    make(
      "section",
      {},
      make("h4", {}, title),
      make(
        "dl",
        {},
        ...values.map(([name, value]) =>
          make("div", {}, make("dt", {}, name), make("dd", {}, value)),
        ),
      ),
    ),
  );
  return make("details", {}, make("summary", {}, run.name), ...sections);
}
