// The theme, the provenance, and putting the sections in their places.

function startTheme(button) {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const say = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    say();
  });
  dark.addEventListener("change", say);
  say();
}

function summarise({ runs, tables, others }) {
  const total = (count) => runs.reduce((sum, run) => sum + count(run), 0);
  const counted = (number, name) => `${countText(number)} ${name}${number === 1 ? "" : "s"}`;
  if (runs.length === 0) {
    const attacks = others.length === 0 ? [] : [counted(others.length, "attack")];
    return [...attacks, counted(tables.length, "table")].join(" · ");
  }
  return [
    counted(runs.length, "run"),
    counted(total((run) => run.models.length), "model"),
    counted(total((run) => run.models.length * run.count), "certificate"),
  ].join(" · ");
}

/** Hide sections without content, and the links to them. */
function leaveOut(...parts) {
  for (const part of parts) {
    document.getElementById(part).hidden = true;
    for (const link of document.querySelectorAll(`nav a[href="#${part}"]`)) link.hidden = true;
    const skip = document.getElementById("skip");
    if (skip.getAttribute("href") === `#${part}`) skip.setAttribute("href", "#tables");
  }
}

/** Explain only what the table has. */
function explainOnly(rows) {
  const summaries = rows.some(({ kind }) => kind === "average" || kind === "envelope");
  const best = rows.some(({ cells }) => cells.some(([, , bold]) => bold));
  document.getElementById("about-summaries").hidden = !summaries;
  document.getElementById("about-best").hidden = !best;
}

/** The data, settings, code and machine behind a run, closed at first. */
function makeProvenance(run) {
  const sections = run.provenance.map(([title, values]) =>
    make(
      "section",
      make("h4", title),
      make(
        "dl",
        ...values.map(([name, value]) =>
          make("div", make("dt", name), make("dd", value)),
        ),
      ),
    ),
  );
  return make("details", make("summary", run.name), ...sections);
}

const content = JSON.parse(document.getElementById("content").textContent);
const place = (id, ...elements) => document.getElementById(id).append(...elements);

startTheme(document.getElementById("theme"));
place("summary", summarise(content));
if (content.table === null) {
  leaveOut("meaning", "results", "curves", "images");
} else {
  const table = makeTable(content.table, "Table of all models");
  place("table", ...makeFacts(content.table), table, ...makeNotes(content.table));
  showNumbers(table.querySelector(".scroll"));
  explainOnly(content.table.rows);
  place("figures", ...content.runs.map((run) => makeFigure(run, content.units)));
  for (const run of content.runs) run.gallery.pictures = content.pictures;
  place("gallery", ...makeGallery(content.runs, content.units));
}
if (content.tables.length === 0) leaveOut("tables");
place("more", ...content.tables.map(makeOther));
place("records", ...[...content.runs, ...content.others].map(makeProvenance));
