"use strict";
// What scripts add: tables that sort, and two buttons. All that the page says is there without them.

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Sorting: by the keys of a column, as numbers where all of them are; rows without a key come last.
function sortRows(heading, column) {
  const body = heading.closest("table").tBodies[0];
  const rows = [...body.rows];
  const keys = new Map(rows.map((row) => [row, row.cells[column].dataset.key]));
  const known = [...keys.values()].filter((key) => key !== undefined);
  const numeric = known.every((key) => key.trim() !== "" && !Number.isNaN(Number(key)));
  const first = heading.dataset.first || "ascending";
  const other = first === "ascending" ? "descending" : "ascending";
  const order = heading.getAttribute("aria-sort") === first ? other : first;
  const sign = order === "ascending" ? 1 : -1;
  rows.sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    return sign * (numeric ? x - y : x.localeCompare(y, undefined, { numeric: true }));
  });
  for (const each of heading.closest("thead").querySelectorAll("th")) each.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.querySelectorAll("thead th:not(.group)")];
  // In a head of two rows, those that span both come first, as they do in the body.
  headings.sort((a, b) => (a.rowSpan > 1 ? 0 : 1) - (b.rowSpan > 1 ? 0 : 1));
  headings.forEach((heading, column) => {
    const button = make("button", { type: "button" }, ...heading.childNodes);
    button.addEventListener("click", () => sortRows(heading, column));
    heading.append(button);
  });
}

const boxes = [...document.querySelectorAll(".legend input")];
for (const [text, checked] of [["show all", true], ["hide all", false]]) {
  const button = make("button", { type: "button", textContent: text });
  button.addEventListener("click", () => boxes.forEach((box) => (box.checked = checked)));
  document.querySelector(".legend").append(button);
}
