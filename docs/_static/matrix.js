"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const detail = document.querySelector(".matrix-detail");
  for (const button of document.querySelectorAll(".matrix [data-detail]")) {
    const row = button.closest("tr"), column = button.closest("td").cellIndex;
    const law = button.closest("table").tHead.rows[0].cells[column].textContent;
    const tell = () => { detail.textContent = `${row.cells[0].textContent}, ${law}: ${button.dataset.detail}`; };
    button.addEventListener("click", tell);
    button.addEventListener("focus", tell);
  }

  const form = document.querySelector(".matrix-filters");
  if (!form) return;
  const rows = [...document.querySelectorAll(".matrix.causes tbody tr")];
  const fields = [...form.querySelectorAll("[data-filter]")];
  const show = () => {
    const wanted = Object.fromEntries(fields.map((x) => [x.dataset.filter, x.value]));
    const fits = (row) =>
      (!wanted.library || row.dataset.library === wanted.library) &&
      (!wanted.kind || row.dataset.kind === wanted.kind) &&
      (!wanted.law || row.dataset.law.split(" ").includes(wanted.law)) &&
      row.textContent.toLowerCase().includes(wanted.text.toLowerCase());
    for (const row of rows) row.hidden = !fits(row);
    form.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  const read = () => {
    const given = new URLSearchParams(location.search);
    for (const field of fields) {
      field.value = given.get(field.dataset.filter) ?? "";
      if (field.selectedIndex === -1) field.value = "";  // a choice that is not there
    }
    show();
  };
  form.addEventListener("input", () => {
    const given = new URLSearchParams(fields.filter((x) => x.value).map((x) => [x.dataset.filter, x.value]));
    history.replaceState(null, "", `${location.pathname}${given.size ? "?" + given : ""}${location.hash}`);
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("popstate", read);
  read();
});
