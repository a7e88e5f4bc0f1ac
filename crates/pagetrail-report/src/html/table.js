"use strict";
// Each table: a click on a head sorts by it.
for (const table of document.querySelectorAll("table.mappings")) (() => {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, index) => {
    const sort = () => {
      const text = head.dataset.kind === "text";
      const ascending = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "ascending" : text;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const key = (row) => row.cells[index].dataset.value ?? row.cells[index].textContent;
      const order = (a, b) => (text ? key(a).localeCompare(key(b)) : Number(key(a)) - Number(key(b)));
      const body = table.tBodies[0];
      body.append(...Array.from(body.rows).sort((a, b) => (ascending ? order(a, b) : order(b, a))));
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
})();
