"use strict";
// What scripts add: tables that sort, curves that stand out, and the numbers under the pointer. All that
// the page says is there without them.

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

// A curve stands out while its row, or its box in the legend, is pointed at or has the focus.
function pick(curve) {
  document.body.classList.toggle("picking", curve !== undefined);
  for (const each of document.querySelectorAll("[data-curve]")) {
    each.classList.toggle("picked", each.dataset.curve === curve);
  }
}

for (const each of document.querySelectorAll("[data-of]")) {
  const area = each.closest("label, tr");
  area.addEventListener("pointerenter", () => pick(each.dataset.of));
  area.addEventListener("pointerleave", () => pick());
  each.addEventListener("focus", () => each.matches(":focus-visible") && pick(each.dataset.of));
  each.addEventListener("blur", () => pick());
}

const boxes = [...document.querySelectorAll(".legend input")];
for (const [text, checked] of [["show all", true], ["hide all", false]]) {
  const button = make("button", { type: "button", textContent: text });
  button.addEventListener("click", () => boxes.forEach((box) => (box.checked = checked)));
  document.querySelector(".legend").append(button);
}

// The numbers under the pointer, or at the place that the arrow keys have moved to.
const format = (value, percent) => (percent ? value.toFixed(1) + "%" : String(Number(value.toPrecision(4))));

function addProbe(figure, panel) {
  const canvas = figure.querySelector(".canvas");
  const plot = figure.querySelector("svg");
  const [left, top, right, bottom, width, height] = panel.frame;
  const [low, high, log] = panel.x;
  const probe = make("div", { className: "probe", tabIndex: 0 });
  const box = make("div", { className: "reading-box", hidden: true });
  let at = 1;
  probe.setAttribute("role", "slider");
  probe.setAttribute("aria-label", "Read the curves: " + plot.querySelector("title").textContent);
  probe.setAttribute("aria-valuemin", 0);
  probe.setAttribute("aria-valuemax", 100);

  function read(share) {
    at = Math.min(Math.max(share, 0), 1);
    const x = log ? low * (high / low) ** at : low + (high - low) * at;
    const lines = panel.lines
      .filter((line) => document.getElementById("curve-" + line.curve).checked)
      .map((line) => ({ ...line, last: line.x.findLastIndex((value) => value <= x * (1 + 1e-9)) }))
      .filter((line) => line.last >= 0)
      .sort((a, b) => b.y[b.last] - a.y[a.last]);
    const heading = format(x) + " " + panel.unit;
    const values = lines.map((line) => format(line.y[line.last], panel.percent));
    box.replaceChildren(
      make("strong", { textContent: heading }),
      ...lines.map((line, i) => {
        const swatch = document.getElementById("curve-" + line.curve).nextElementSibling.cloneNode(true);
        return make("div", {}, swatch, make("span", { textContent: line.label }), make("span", { textContent: values[i] }));
      }),
    );
    box.hidden = false;
    probe.classList.add("reading");
    probe.style.setProperty("--at", 100 * at + "%");
    probe.setAttribute("aria-valuenow", Math.round(100 * at));
    probe.setAttribute("aria-valuetext", [heading, ...lines.map((line, i) => line.label + " " + values[i])].join(", "));
    // On the side where the pointer is not.
    const scale = plot.getBoundingClientRect().width / width;
    box.style.left = at < 0.5 ? "" : (left + 4) * scale + "px";
    box.style.right = at < 0.5 ? canvas.clientWidth - (right - 4) * scale + "px" : "";
    // Accuracy rises, most else falls: the box goes where there are few curves.
    if (panel.percent) box.style.bottom = (height - bottom + 6) * scale + "px";
    else box.style.top = top * scale + "px";
  }

  function leave() {
    if (document.activeElement === probe && probe.matches(":focus-visible")) return;
    box.hidden = true;
    probe.classList.remove("reading");
  }

  probe.addEventListener("pointermove", (event) => read(event.offsetX / probe.clientWidth));
  probe.addEventListener("pointerleave", leave);
  probe.addEventListener("focus", () => probe.matches(":focus-visible") && read(at));
  probe.addEventListener("blur", leave);
  probe.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.02, ArrowDown: -0.02, ArrowRight: 0.02, ArrowUp: 0.02, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 };
    if (!(event.key in step)) return;
    event.preventDefault();
    read(at + step[event.key]);
  });

  // Over the frame, in shares of the plot, which may be wider than its canvas.
  function fit() {
    const size = plot.getBoundingClientRect();
    const [across, down] = [size.width / width, size.height / height];
    Object.assign(probe.style, {
      left: left * across + "px",
      top: top * down + "px",
      width: (right - left) * across + "px",
      height: (bottom - top) * down + "px",
    });
  }
  new ResizeObserver(fit).observe(plot);
  canvas.append(probe, box);
  fit();
}

const panels = JSON.parse(document.getElementById("panels").textContent);
for (const figure of document.querySelectorAll("figure[data-panel]")) {
  addProbe(figure, panels[figure.dataset.panel]);
}
