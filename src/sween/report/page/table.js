// Tables: a click on a heading sorts, a third click restores the original order.

/** A table other than that of all models, with its title and notes. */
function makeOther(content) {
  return make(
    "section.other",
    make("h3", content.title),
    ...makeFacts(content),
    makeTable(content, content.title),
    ...makeNotes(content),
  );
}

/** What holds for all rows of a table, stated once. */
function makeFacts({ facts }) {
  return facts.length ? [make("p.facts", facts.join(" · "))] : [];
}

function makeNotes({ notes }) {
  return notes.map((note) => make("p.note", note));
}

function makeTable(content, label) {
  const body = make("tbody");
  const several =
    content.columns.some((column) => column.heading === "run") &&
    content.rows.every((row) => !["other", "alarm"].includes(row.kind)) &&
    new Set(content.rows.map((row) => row.run)).size > 1;
  const rows = content.rows.map((row) => ({
    ...row,
    element: makeRow(row, content.columns, several),
  }));
  const headings = content.columns.map((column, place) => {
    const action = { type: "button", title: column.note, onclick: () => sort(place) };
    const button = make("button", action);
    const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
    // Breaks between words only: a non-breaking hyphen in "two-class".
    button.append(make("span", column.heading.replaceAll("-", "\u2011")), arrow);
    return make("th", { scope: "col", "aria-sort": "none", class: columnClass(column) }, button);
  });

  function sort(place) {
    const column = content.columns[place];
    const other = column.first === "ascending" ? "descending" : "ascending";
    const next = { none: column.first, [column.first]: other, [other]: "none" };
    const order = next[headings[place].getAttribute("aria-sort")];
    for (const heading of headings) heading.setAttribute("aria-sort", "none");
    headings[place].setAttribute("aria-sort", order);
    show(order === "none" ? rows : sortRows(rows, place, order));
    body.classList.toggle("sorted", order !== "none");
  }

  function show(ordered) {
    body.replaceChildren(...ordered.map((row) => row.element));
  }

  show(rows);
  rows.forEach((row, place) => {
    row.element.classList.toggle("first-of-run", place > 0 && rows[place - 1].run !== row.run);
  });
  const head = make("thead", ...makeHead(headings, content.columns));
  const table = make("table.results", head, body);
  return makeScroll(table, label);
}

/** A box in which a wide table scrolls, with a hint where columns are out of view. */
function makeScroll(table, label) {
  const attributes = { class: "scroll", tabindex: "0", role: "region", "aria-label": label };
  const box = make("div", attributes, table);
  const hint = make("p.hint", "Scroll sideways for more columns");
  const element = make("div.table-box", hint, make("div.edges", box));
  const update = () => {
    const left = box.scrollLeft > 1;
    const right = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
    element.classList.toggle("more-left", left);
    element.classList.toggle("more-right", right);
    hint.hidden = !left && !right;
  };
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box);
  return element;
}

/** The headings, and above those of radii what their columns contain. */
function makeHead(headings, columns) {
  const radii = columns.filter((column) => column.radius).length;
  if (radii === 0) return [make("tr", ...headings)];
  const before = columns.findIndex((column) => column.radius);
  return [
    make(
      "tr.groups",
      make("td", { colspan: before }),
      make("th", { colspan: radii, scope: "colgroup" }, "certified accuracy % at radius"),
      make("td", { colspan: columns.length - before - radii }),
    ),
    make("tr", ...headings),
  ];
}

function makeRow(row, columns, several) {
  const cells = row.cells.map(([text, , best, interval, short], place) => {
    const column = columns[place];
    const content = make(best ? "strong" : "span", {}, text);
    if (column.heading !== "Model") {
      const below = short ? make("small.interval", short) : null;
      return make("td", { class: columnClass(column), title: interval }, content, below);
    }
    // Where the page is narrow the column of runs is out of sight, so the name says it too.
    const run = several ? make("small.of-run", row.run) : null;
    return make("th", { class: columnClass(column), scope: "row" }, content, run);
  });
  return make("tr", { class: `kind-${row.kind}` }, ...cells);
}

/** Where a table is much wider than the screen, start at its numbers; the name stays in view. */
function showNumbers(box) {
  if (box.scrollWidth < 1.5 * box.clientWidth) return;
  const [first, model] = [box.querySelector("th.at-radius"), box.querySelector("tbody .model")];
  box.scrollLeft = first.offsetLeft - model.offsetWidth;
}

function columnClass(column) {
  const names = [column.text ? "text" : "number"];
  if (["run", "kind", "Model"].includes(column.heading)) names.push(column.heading.toLowerCase());
  if (column.radius) names.push("at-radius");
  return names.join(" ");
}

/** Rows by one column; what has no value stays last in both orders, ties keep their order. */
function sortRows(rows, place, order) {
  const sign = order === "ascending" ? 1 : -1;
  const value = (row) => row.cells[place][1];
  const compare = (one, other) =>
    typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
  return [...rows].sort((one, other) => {
    if (value(one) === null || value(other) === null) {
      return (value(one) === null) - (value(other) === null);
    }
    return sign * compare(value(one), value(other));
  });
}
