// The page is complete without this script; it sorts, unfolds, switches tabs, hides and reads off.
"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
document.documentElement.classList.add("js");

// ---- tables: a heading sorts; a variant and its seeds are one tbody and stay together
function sortValue(group, column) {
  const cell = group.rows[0].cells[column];
  const key = cell.dataset.key ?? cell.textContent.trim();
  return key === "" ? NaN : isNaN(key) ? key : Number(key);
}
function compare(a, b, way) {
  const missing = Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  if (missing || Number.isNaN(a)) return missing; // what is missing comes last, either way
  return way * (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}
function sortBy(heading) {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const first = heading.dataset.first === "descending" ? -1 : 1;
  const again = heading.getAttribute("aria-sort");
  const way = again ? (again === "ascending" ? -1 : 1) : first;
  all("th[aria-sort]", table).forEach((th) => th.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
  const groups = [...table.tBodies].map((group) => [sortValue(group, column), group]);
  groups.sort((a, b) => compare(a[0], b[0], way));
  groups.forEach(([, group]) => table.append(group));
}
all("table.sortable thead button").forEach((button) =>
  button.addEventListener("click", () => sortBy(button.closest("th"))));
all("button.fold").forEach((button) =>
  button.addEventListener("click", () => {
    const open = button.closest("tbody").classList.toggle("open");
    button.setAttribute("aria-expanded", String(open));
  }));

// ---- tabs: the arrow keys go from one to the next
all(".tabs").forEach((box) => {
  const tabs = all("[role=tab]", box);
  const show = (chosen) => tabs.forEach((tab) => {
    const on = tab === chosen;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).classList.toggle("shown", on);
  });
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      show(next);
      next.focus();
    });
  });
  if (tabs.length) show(tabs[0]);
});

// ---- legends: a variant is hidden, or picked out, in every chart of its section
all(".legend button").forEach((button) => {
  const groups = all("g[data-variant]", button.closest("section"));
  const mine = (group) => group.dataset.variant === button.dataset.variant;
  const pick = (on) => groups.forEach((group) => group.classList.toggle("faint", on && !mine(group)));
  button.addEventListener("pointerenter", () => pick(true));
  button.addEventListener("pointerleave", () => pick(false));
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    groups.filter(mine).forEach((group) => group.classList.toggle("off", !on));
  });
});

// ---- maps: one seed at a time
all("select[data-maps]").forEach((select) =>
  select.addEventListener("change", () =>
    all("figure[data-seed]").forEach((map) => { map.hidden = map.dataset.seed !== select.value; })));

// ---- charts: the means under the pointer
const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
function heightAt(line, x) {
  const points = line.getAttribute("points").split(" ").map((p) => p.split(",").map(Number));
  const after = points.findIndex((p) => p[0] >= x);
  if (after < 0 || (after === 0 && points[0][0] > x + 1)) return NaN;
  if (after === 0) return points[0][1];
  const [[x0, y0], [x1, y1]] = [points[after - 1], points[after]];
  return x1 > x0 ? y0 + ((x - x0) / (x1 - x0)) * (y1 - y0) : y1;
}
all("svg.chart").forEach((chart) => {
  const { box: [left, top, right, bottom], x, y, label } = JSON.parse(chart.dataset.area);
  const cursor = chart.querySelector(".cursor");
  const output = chart.parentElement.querySelector("output");
  chart.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(chart.getScreenCTM().inverse()).x;
    if (at < left || at > right) return;
    cursor.setAttribute("transform", `translate(${at} 0)`);
    cursor.setAttribute("visibility", "visible");
    const read = all("g[data-variant]:not(.off)", chart)
      .map((group) => [group.dataset.label, heightAt(group.querySelector(".mean"), at)])
      .filter(([, height]) => !Number.isNaN(height)).sort((a, b) => a[1] - b[1])
      .map(([name, height]) =>
        `${name} ${(y[0] + ((bottom - height) / (bottom - top)) * (y[1] - y[0])).toFixed(1)} %`);
    const where = x[0] + ((at - left) / (right - left)) * (x[1] - x[0]);
    output.textContent = `${label} ${number(where)}: ${read.join(" · ")}`;
  });
  chart.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    output.textContent = "";
  });
});
