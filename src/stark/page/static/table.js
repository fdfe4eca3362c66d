// A table that sorts by any column and filters by a text. Each column: {name, of(row), cell(row), isNumber}.
// A browser needs a second to lay a thousand rows out, so only the first are drawn until a reader gets to their end.
"use strict";

const PAGE = 100; // rows

stark.table = ({ columns, rows, onOpen, sortBy, isDescending = false, textOf, isChosen = () => true, keyOf }) => {
  const state = { rows, sortBy: sortBy ?? columns[0].name, isDescending, text: "", isChosen, selected: null };
  const body = stark.h("tbody");
  const heads = columns.map((column) => {
    const button = stark.h("button", { type: "button", title: column.title }, column.name);
    button.addEventListener("click", () => {
      state.isDescending = state.sortBy === column.name ? !state.isDescending : Boolean(column.isNumber && column.isBestHigh);
      state.sortBy = column.name;
      draw();
    });
    return stark.h("th", { scope: "col", class: column.isNumber ? "number-cell" : column.class || null }, button);
  });
  const count = stark.h("p", { class: "dim count", role: "status" });
  const draw = () => {
    const column = columns.find((each) => each.name === state.sortBy);
    const wanted = state.text.toLowerCase();
    const shown = state.rows.filter((row) => state.isChosen(row) && (!wanted || textOf(row).toLowerCase().includes(wanted)));
    const missingLast = (value) => value === null || value === undefined || value === "";
    shown.sort((one, other) => {
      const [a, b] = [column.of(one), column.of(other)];
      if (missingLast(a) || missingLast(b)) return missingLast(a) - missingLast(b);
      return (a < b ? -1 : a > b ? 1 : 0) * (state.isDescending ? -1 : 1);
    });
    heads.forEach((head, index) => head.setAttribute("aria-sort", columns[index] === column ? (state.isDescending ? "descending" : "ascending") : "none"));
    state.shown = shown;
    const drawn = body.children.length; // a reader far down stays there
    stark.fill(body);
    append(Math.max(PAGE, drawn));
    count.textContent = shown.length === state.rows.length ? `${shown.length} rows` : `${shown.length} of ${state.rows.length} rows`;
  };
  const append = (most) => {
    body.append(...state.shown.slice(body.children.length, most).map((row) => {
      const line = stark.h("tr", { tabindex: 0, "data-key": keyOf(row), class: keyOf(row) === state.selected ? "selected" : null },
        columns.map((each) => stark.h("td", { class: each.isNumber ? "number-cell" : each.class || null }, each.cell(row))));
      line.addEventListener("click", () => onOpen(row));
      line.addEventListener("keydown", (event) => event.key === "Enter" && event.target === line && onOpen(row));
      return line;
    }));
    rest.hidden = body.children.length === state.shown.length;
  };
  const rest = stark.h("p", { class: "dim" }, "more rows below …");
  const watcher = new IntersectionObserver(([end]) => {
    if (!end.isIntersecting) return;
    append(body.children.length + PAGE);
    watcher.unobserve(rest); // and look again: a page may be less than a screen
    watcher.observe(rest);
  }, { rootMargin: "600px" });
  watcher.observe(rest);
  return {
    element: stark.h("div", { class: "table-box" }, stark.h("table", null, stark.h("thead", null, stark.h("tr", null, heads)), body), rest, count),
    set: (more) => {
      Object.assign(state, more);
      draw();
    },
    select: (key) => {
      state.selected = key;
      for (const line of body.children) line.classList.toggle("selected", line.dataset.key === String(key));
    },
  };
};
