// Elements and numbers. Text becomes text nodes, never markup: names come from files, and a file
// may come from a stranger.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element, "tag.class"; attributes, where given, come before the children. */
function make(tag, ...parts) {
  return fill((name) => document.createElement(name), tag, parts);
}

/** The same for SVG. */
function draw(tag, ...parts) {
  return fill((name) => document.createElementNS(SVG, name), tag, parts);
}

/** Attributes named on... are listeners; null and false ones, and null children, are left out. */
function fill(create, tag, parts) {
  const [name, ...classes] = tag.split(".");
  const element = create(name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(key, value);
    }
  }
  element.append(...parts.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An id for an element that a label points to. */
function newId(purpose) {
  newId.count = (newId.count ?? 0) + 1;
  return `${purpose}-${newId.count}`;
}

/** Buttons of which one is pressed. */
function makeSwitch(label, choices, chosen, choose) {
  const buttons = choices.map(({ value, text, disabled, note }) =>
    make(
      "button",
      {
        type: "button",
        "aria-pressed": String(value === chosen),
        disabled,
        title: note,
        onclick: (event) => {
          for (const button of buttons) {
            button.setAttribute("aria-pressed", String(button === event.currentTarget));
          }
          choose(value);
        },
      },
      text,
    ),
  );
  return make("div", { class: "switch", role: "group", "aria-label": label }, ...buttons);
}

/** A radius in units as text with three decimals, rounded down like the rest of the report. */
function radiusText(units, perOne) {
  return (Math.floor((units * 1000) / perOne) / 1000).toFixed(3);
}

/** A chosen radius in units, with two decimals or all that it has. */
function chosenText(units, perOne) {
  const value = units / perOne;
  const text = value.toFixed(2);
  return Number(text) === value ? text : String(value);
}

/** A fraction as a percentage with one decimal. */
function percentText(fraction) {
  const value = 100 * fraction;
  // A tie goes to the even digit, as in the table, which Python wrote; toFixed takes it upwards.
  return (value % 1 === 0.25 ? value - 0.05 : value).toFixed(1);
}

function countText(count) {
  return count.toLocaleString("en");
}
