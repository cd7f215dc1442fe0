"use strict";
// Makes each table's heads buttons that sort it. A long table gets a field to search it, and one
// that is longer than what is shown at once a button to show it all. On a narrow screen rows are
// cards, whose cells say their column. A command gets a button that copies it.
const narrow = matchMedia("(max-width: 40rem)").matches;
const AT_ONCE = 6;  // cards of a table: a row of twenty fields is half a phone's screen
const natural = new Intl.Collator("en", { numeric: true });

function sorted(rows, column, head, down) {
  const words = head.classList.contains("text") || head.classList.contains("command");
  const keyed = rows.map((row) => {
    const cell = row.cells[column];
    const key = words ? cell.textContent : parseFloat(cell.dataset.v);
    return [row, key, words ? key === "" : Number.isNaN(key)];
  });
  const way = down ? -1 : 1;
  // What has no value comes last, either way.
  keyed.sort((a, b) => a[2] - b[2] || (a[2] ? 0
    : way * (words ? natural.compare(a[1], b[1]) : a[1] - b[1])));
  return keyed.map((each) => each[0]);
}

function copying(code) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {  // a page of a file may not write to the clipboard everywhere: what is selected may
      getSelection().selectAllChildren(code);
      button.textContent = document.execCommand("copy") ? "copied" : "press Ctrl+C";
    }
  });
  return button;
}

function prepare(table) {
  const [first] = table.tBodies;
  const rest = table.tBodies[1] ?? table.createTBody();
  const heads = [...table.tHead.rows[0].cells];
  const titles = heads.map((head) => head.textContent);
  let rows = [...table.tBodies].flatMap((body) => [...body.rows]);
  let most = narrow ? Math.min(first.rows.length, AT_ONCE) : first.rows.length;
  let words = [];
  const told = document.createElement("output");
  const all = document.createElement("button");

  function show() {
    const found = rows.filter((row) => {
      const text = words.length ? row.textContent.toLowerCase() : "";
      return words.every((word) => text.includes(word));
    });
    first.replaceChildren(...found.slice(0, most));
    rest.replaceChildren(...found.slice(most));
    dress();
    tell(found.length);
  }

  // What only rows that are shown need: thousands take a browser seconds.
  function dress() {
    for (const row of first.rows) {
      if (row.dataset.dressed) continue;
      row.dataset.dressed = "yes";
      [...row.cells].forEach((cell, column) => {
        cell.dataset.column = titles[column];
        cell.classList.toggle("none", cell.textContent === "-");
        const code = cell.querySelector("code");
        if (code) cell.append(copying(code));
      });
    }
  }

  function tell(found) {
    all.hidden = found <= most;
    all.textContent = `show all ${found} rows`;
    const some = found > most ? `, the first ${most} shown` : "";
    told.textContent = words.length || some ? `${found} of ${rows.length} rows${some}` : "";
  }

  heads.forEach((head, column) => {
    const figures = head.classList.contains("number") || head.classList.contains("share");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => {
      // Of figures the largest first, of words the first of the alphabet.
      const before = head.getAttribute("aria-sort");
      const down = figures ? before !== "descending" : before === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows = sorted(rows, column, head, down);
      show();
    });
    head.replaceChildren(button);
  });
  table.classList.add("cards");
  rest.hidden = true;
  show();
  if (!table.classList.contains("searched")) return;
  const line = document.createElement("div");
  const label = document.createElement("label");
  const field = document.createElement("input");
  line.className = "search";
  field.type = "search";
  field.placeholder = "words that a row has";
  field.addEventListener("input", () => {
    words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    show();
  });
  all.type = "button";
  all.addEventListener("click", () => {
    most = Infinity;
    show();
  });
  label.append("find ", field);
  line.append(label, told, all);
  table.parentNode.before(line);
  tell(rows.length);
}

// A closed table is made ready when it is first opened: a page may have 11,000 rows in one.
for (const table of document.querySelectorAll("table")) {
  const fold = table.closest("details");
  if (fold.open) prepare(table);
  else fold.addEventListener("toggle", () => prepare(table), { once: true });
}

const contents = document.querySelector("nav details");
if (contents && narrow) contents.open = false;

// A link to a folded table opens it.
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", unfold);
unfold();
