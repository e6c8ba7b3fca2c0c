"use strict";
// Three lists of rows, of which only those in view are in the document: a kernel has some ten thousand.

const PIPES = {
  "tensor": "#7c4dff", "fma": "#1e88e5", "fma heavy": "#0d5fa8", "fp16": "#26a69a", "fp64": "#00695c",
  "alu": "#43a047", "xu": "#e53935", "lsu": "#fb8c00", "tma": "#c2185b", "tex": "#8d6e63",
  "adu": "#fdd835", "cbu": "#9e9e9e", "uniform": "#5c6bc0", "none": "#cfd8dc", "unknown": "#000000",
};
const COLUMNS = {
  n: ["", "line of the file or of the text; address"],
  p: ["SASS", "machine instructions, by pipe"],
  l: ["live", "registers of a thread that are live, at most"],
  x: ["warps", "executions by warps, as the CPU executor counts them"],
  b: ["bank", "wavefronts of shared memory, over the fewest possible"],
  s: ["sect", "sectors of global memory touched, over those that hold the bytes"],
};
const HEIGHT = 18, BEYOND = 20;
const data = JSON.parse(document.getElementById("rows").textContent);
const ORDER = Array.from(document.querySelectorAll(".pane"), (pane) => pane.id);
// Panes whose rows stand side by side, and are scrolled and folded together.
const aligned = document.querySelector("main.aligned") !== null;
const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact" });

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// -- What a row looks like ------------------------------------------------------------------------

function bar(pipes, total) {
  const made = element("span", "bar");
  for (const [pipe, count] of pipes) {
    const part = element("i");
    part.style.background = PIPES[pipe];
    part.style.width = `${(100 * count) / total}%`;
    made.append(part);
  }
  return made;
}

// Shade a cell by how often its line ran.
function heat(node, executions, most) {
  node.classList.add("hot");
  node.style.setProperty("--heat", Math.sqrt(executions / most));
}

function cell(column, row, { name: of, hottest }) {
  const value = row[column];
  const made = element("span", `cell ${column}`);
  if (row.v?.includes(column)) made.classList.add("differs");
  if (value === undefined) return made;
  if (column === "p") {
    const total = value.reduce((sum, [, count]) => sum + count, 0);
    made.append(bar(value, total), of === "machine" ? "" : total);
  } else if (column === "b" || column === "s") {
    const [taken, fewest] = value;
    made.textContent = (taken / fewest).toFixed(1);
    made.classList.toggle("bad", taken > fewest);
  } else {
    made.textContent = column === "x" ? short.format(value) : value;
    if (column === "x") heat(made, value, hottest);
  }
  return made;
}

// All that is known of a row, in words.
function told(row) {
  const words = [];
  if (row.p) words.push(row.p.map(([pipe, count]) => `${pipe} ${count}`).join(", "));
  if (row.l) words.push(`${row.l} registers live`);
  if (row.x) words.push(`${number.format(row.x)} executions by warps`);
  for (const [column, unit] of [["b", "wavefronts"], ["s", "sectors"]]) {
    const [taken, fewest] = row[column] ?? [];
    if (taken) words.push(`${number.format(taken)} ${unit}, ${number.format(fewest)} at the least`);
  }
  return words.join("; ");
}

const TOKEN = /(\/\/%.*)|(\/\/.*)|(^\s*(?:@!?[\w%]+\s+)?)([a-z][a-z0-9_]*(?:[.:]+\w+)+|[A-Z][A-Z0-9_]*(?:\.\w+)*)(?=[\s;]|$)/g;

function coloured(text) {
  const made = element("span", "text");
  let done = 0;
  for (const match of text.matchAll(TOKEN)) {
    const [whole, control, comment, before, opcode] = match;
    made.append(text.slice(done, match.index) + (opcode ? before : ""));
    made.append(element("span", control ? "control" : comment ? "comment" : "opcode",
      opcode ?? whole));
    done = match.index + whole.length;
  }
  made.append(text.slice(done));
  return made;
}

// -- A pane ---------------------------------------------------------------------------------------

class Pane {
  constructor(name) {
    this.name = name;
    this.rows = data[name];
    this.columns = Object.keys(COLUMNS).filter((c) => this.rows.some((row) => row[c] !== undefined));
    this.hottest = this.rows.reduce((most, row) => Math.max(most, row.k ? 0 : row.x ?? 0), 1);
    this.closed = new Set(this.rows.flatMap((row, i) => (row.c ? [i] : [])));
    this.linked = new Set();
    this.found = new Set();
    this.node = document.getElementById(name);
    this.head = element("div", "head");
    for (const column of this.columns) {
      const made = element("span", `cell ${column}`, COLUMNS[column][0]);
      made.title = COLUMNS[column][1];
      this.head.append(made);
    }
    this.room = element("div", "room");
    this.node.append(this.head, this.room);
    this.node.addEventListener("scroll", () => {
      this.draw();
      if (aligned) panes.forEach((each) => (each.node.scrollTop = this.node.scrollTop));
    });
    this.enclosing = this.headsOfFolds();
    this.arrange();
  }

  headsOfFolds() {
    const open = [];
    return this.rows.map((row, i) => {
      while (open.length && i >= this.rows[open.at(-1)].e) open.pop();
      const inside = [...open];
      if (row.e !== undefined) open.push(i);
      return inside;
    });
  }

  // Which rows are to be seen, after a fold was closed or opened.
  arrange() {
    this.visible = [];
    for (let i = 0; i < this.rows.length; ) {
      this.visible.push(i);
      i = this.closed.has(i) ? Math.max(this.rows[i].e, i + 1) : i + 1;
    }
    this.room.style.height = `${this.visible.length * HEIGHT}px`;
    this.nodes = new Map();
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / HEIGHT) - BEYOND);
    const count = Math.ceil(this.node.clientHeight / HEIGHT) + 2 * BEYOND;
    const shown = this.visible.slice(first, first + count);
    if (shown.length !== this.nodes.size || shown.some((i) => !this.nodes.has(i))) {
      this.nodes = new Map(shown.map((i, k) => [i, this.nodes.get(i) ?? this.line(i, first + k)]));
      this.room.replaceChildren(...this.nodes.values());
    }
    for (const [i, node] of this.nodes) {
      node.classList.toggle("linked", this.linked.has(i));
      node.classList.toggle("pinned", pinned?.pane === this && pinned.row === i);
      node.classList.toggle("found", this.found.has(i));
    }
  }

  line(i, place) {
    const row = this.rows[i];
    const made = element("div", `row ${row.k ?? "line"} ${row.g ?? ""}`);
    made.dataset.row = i;
    made.title = told(row);
    made.style.top = `${place * HEIGHT}px`;
    made.classList.toggle("loop", row.m === 1);
    made.classList.toggle("idle", this.columns.includes("x") && row.p !== undefined
      && this.name !== "machine" && !row.x);
    made.append(...this.columns.map((column) => cell(column, row, this)));
    // Machine code has no counts of its own: those of the text.
    const executions = this.name === "machine" && data.text[row.o]?.x;
    if (executions) heat(made.querySelector(".cell.n"), executions, panes[1].hottest);
    const text = coloured(row.t);
    const toggle = row.e === undefined ? "" : this.closed.has(i) ? "▸" : "▾";
    text.prepend(element("span", "toggle", toggle));
    if (this.name !== "source" && !aligned) text.style.paddingLeft = `${row.d}ch`;
    made.append(text);
    return made;
  }

  toggle(i) {
    for (const each of aligned ? panes : [this]) {
      each.closed.delete(i) || each.closed.add(i);
      each.arrange();
    }
  }

  show(i) {
    const closed = this.enclosing[i].filter((head) => this.closed.has(head));
    closed.forEach((head) => this.toggle(head));
    const place = this.visible.indexOf(i) * HEIGHT;
    const { scrollTop, clientHeight } = this.node;
    if (place < scrollTop || place > scrollTop + clientHeight - 3 * HEIGHT) {
      this.node.scrollTop = Math.max(0, place - clientHeight / 3);
    }
    this.draw();
  }
}

// -- Links: of each row those of the other panes --------------------------------------------------

// For each pane and each row of the pane to its left the rows that name it as where they are from.
const derived = ORDER.map((name) => {
  const found = new Map();
  data[name].forEach((row, i) => {
    if (row.o === undefined) return;
    if (!found.has(row.o)) found.set(row.o, []);
    found.get(row.o).push(i);
  });
  return found;
});

// A row, and where it is the head of a fold that a macro's call makes all that is below.
function below(rows, i) {
  const end = rows[i].o === undefined || aligned ? i + 1 : rows[i].e ?? i + 1;
  return Array.from({ length: Math.max(end - i, 1) }, (_, k) => i + k);
}

function linksOf(pane, i) {
  const links = ORDER.map(() => new Set());
  const own = ORDER.indexOf(pane.name);
  links[own] = new Set(below(pane.rows, i));
  for (let k = own + 1; k < ORDER.length; k++) {
    for (const from of links[k - 1]) {
      for (const row of derived[k].get(from) ?? []) {
        below(data[ORDER[k]], row).forEach((each) => links[k].add(each));
      }
    }
  }
  let row = i;
  for (let k = own; k > 0; k--) {
    row = data[ORDER[k]][row].o;
    if (row === undefined) break;
    links[k - 1].add(row);
  }
  return Object.fromEntries(ORDER.map((name, k) => [name, links[k]]));
}

function link(pane, i) {
  const links = pane === null ? null : linksOf(pane, i);
  for (const each of panes) {
    each.linked = links === null ? new Set() : links[each.name];
    each.draw();
  }
  return links;
}

let pinned = null;
const panes = [];
for (const name of ORDER) panes.push(new Pane(name));

function pin(pane, i) {
  pinned = { pane, row: i };
  const links = link(pane, i);
  for (const each of panes) {
    const rows = [...links[each.name]].sort((x, y) => x - y);
    if (each !== pane && rows.length) each.show(rows[0]);
  }
}

function unpin() {
  pinned = null;
  link(null);
}

let hovered = null;
for (const pane of panes) {
  const rowAt = (event) => {
    const node = event.target.closest(".row");
    return node && Number(node.dataset.row);
  };
  pane.node.addEventListener("mousemove", (event) => {
    const i = rowAt(event);
    if (pinned || i === null || (hovered?.pane === pane && hovered.row === i)) return;
    hovered = { pane, row: i };
    link(pane, i);
  });
  pane.node.addEventListener("mouseleave", () => {
    hovered = null;
    if (!pinned) link(null);
  });
  pane.node.addEventListener("click", (event) => {
    const i = rowAt(event);
    if (i === null) return;
    if (event.target.classList.contains("toggle") && pane.rows[i].e !== undefined) pane.toggle(i);
    else if (pinned?.pane === pane && pinned.row === i) unpin();
    else pin(pane, i);
  });
}

// -- Search, folds, panes, colours ----------------------------------------------------------------

const search = document.getElementById("search");
const matches = document.getElementById("matches");
let results = [], current = -1;

function find() {
  const words = search.value.trim().toLowerCase();
  results = [];
  current = -1;
  for (const pane of panes) {
    const found = pane.rows.flatMap((row, i) =>
      words && row.t.toLowerCase().includes(words) ? [i] : []);
    pane.found = new Set(found);
    results.push(...found.map((row) => ({ pane, row })));
    pane.draw();
  }
  matches.textContent = words ? `${number.format(results.length)} rows` : "";
}

function next(step) {
  if (!results.length) return;
  current = (current + step + results.length) % results.length;
  const { pane, row } = results[current];
  pane.show(row);
  pin(pane, row);
  matches.textContent = `${current + 1} of ${number.format(results.length)}`;
}

search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "Escape") {
    search.value = "";
    search.blur();
    find();
    unpin();
  }
});

document.getElementById("fold").addEventListener("click", () => {
  const folds = (pane) => pane.rows.flatMap((row, i) => (row.k === "fold" ? [i] : []));
  const open = panes.some((pane) => folds(pane).some((i) => !pane.closed.has(i)));
  for (const pane of panes) {
    for (const i of folds(pane)) if (open) pane.closed.add(i); else pane.closed.delete(i);
    pane.arrange();
  }
});

for (const button of document.querySelectorAll("nav button[data-pane]")) {
  button.addEventListener("click", () => {
    const pane = panes.find((each) => each.name === button.dataset.pane);
    pane.node.hidden = !pane.node.hidden;
    button.setAttribute("aria-pressed", String(!pane.node.hidden));
    panes.forEach((each) => each.draw());
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

for (const mark of document.querySelectorAll("i.pipe")) {
  const colour = PIPES[mark.dataset.pipe];
  if (colour) mark.style.background = colour;
}
addEventListener("resize", () => panes.forEach((pane) => pane.draw()));
