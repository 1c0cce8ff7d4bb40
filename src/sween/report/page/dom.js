// Elements and numbers. Text becomes text nodes, never markup: names come from files, and a file
// may come from a stranger.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; attributes named on... are listeners, null and false ones are left out. */
function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
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
