// Puts the parts in their places.

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

function summarise(runs) {
  const total = (count) => runs.reduce((sum, run) => sum + count(run), 0);
  const counted = (number, name) => `${countText(number)} ${name}${number === 1 ? "" : "s"}`;
  return [
    counted(runs.length, "run"),
    counted(total((run) => run.models.length), "model"),
    counted(total((run) => run.models.length * run.count), "certificate"),
  ].join(" · ");
}

const content = JSON.parse(document.getElementById("content").textContent);
const place = (id, ...elements) => document.getElementById(id).append(...elements);

startTheme(document.getElementById("theme"));
place("summary", summarise(content.runs));
const table = makeTable(content.table);
place("table", table);
showNumbers(table);
place("figures", ...content.runs.map((run) => makeFigure(run, content.units)));
for (const run of content.runs) run.gallery.pictures = content.pictures;
place("gallery", ...makeGallery(content.runs, content.units));
place("records", ...content.runs.map(makeProvenance));
