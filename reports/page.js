"use strict";
// Makes each table's heads buttons that sort it, and gives a long table a field to search it.
const natural = new Intl.Collator("en", { numeric: true });

function sort(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const words = head.classList.contains("text") || head.classList.contains("command");
  const keyed = [...table.tBodies[0].rows].map((row) => {
    const cell = row.cells[column];
    const key = words ? cell.textContent : parseFloat(cell.dataset.v);
    return [row, key, words ? key === "" : Number.isNaN(key)];
  });
  const way = down ? -1 : 1;
  // What has no value comes last, either way.
  keyed.sort((a, b) => a[2] - b[2] || (a[2] ? 0
    : way * (words ? natural.compare(a[1], b[1]) : a[1] - b[1])));
  table.tBodies[0].replaceChildren(...keyed.map((each) => each[0]));
}

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(table, column, head));
    head.replaceChildren(button);
  });
  if (!table.classList.contains("searched")) continue;
  const line = document.createElement("label");
  const field = document.createElement("input");
  const told = document.createElement("output");
  line.className = "search";
  field.type = "search";
  field.placeholder = "words that a row has";
  line.append("find", field, told);
  table.parentNode.before(line);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += !row.hidden;
    }
    told.textContent = words.length ? `${left} of ${rows.length} rows` : "";
  });
}
