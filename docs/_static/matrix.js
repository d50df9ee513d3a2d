"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector(".matrix-filters");
  if (!form) return;
  const rows = [...document.querySelectorAll(".matrix.causes tbody tr")];
  const show = () => {
    const wanted = Object.fromEntries([...form.querySelectorAll("[data-filter]")].map((x) => [x.dataset.filter, x.value]));
    const fits = (row) =>
      (!wanted.library || row.dataset.library === wanted.library) &&
      (!wanted.kind || row.dataset.kind === wanted.kind) &&
      (!wanted.law || row.dataset.law.split(" ").includes(wanted.law)) &&
      row.textContent.toLowerCase().includes(wanted.text.toLowerCase());
    for (const row of rows) row.hidden = !fits(row);
    form.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
});
