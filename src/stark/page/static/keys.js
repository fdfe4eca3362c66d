// The keyboard: everything that the mouse does.
"use strict";

stark.KEYS = [
  ["/", "find a node by number or words"],
  ["← → ↑ ↓", "parent, child, neighbours in the tree"],
  ["Enter", "open the selected node"],
  ["b", "the best node"],
  ["r", "the root"],
  ["n  p", "next and previous attempt"],
  ["1 to 7", "the tabs of a node"],
  ["f", "wide panel"],
  ["+ - 0", "zoom in, zoom out, fit"],
  ["t", "light or dark"],
  ["Esc", "close"],
  ["?", "this help"],
];

stark.listenToKeys = (app) => {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return app.escape();
    if (event.target.closest("input, select, textarea, dialog")) return;
    const view = app.view;
    if (event.key === "?") app.help();
    else if (event.key === "t") app.turnTheme();
    else if (event.key === "/") app.find();
    else if (!(view instanceof stark.RunView) || !view.document) return;
    else if (event.key.startsWith("Arrow")) {
      if (event.target.closest(".code, .tabs")) return;
      view.tree.move(event.key.slice(5).toLowerCase());
    } else if (event.key === "Enter" && event.target === view.tree.canvas) view.tree.select(view.tree.selected ?? view.document.winner ?? 0);
    else if (event.key === "b" && view.document.winner !== null) app.go({ node: view.document.winner });
    else if (event.key === "r") app.go({ node: 0 });
    else if (event.key === "n" || event.key === "p") {
      const rows = view.document.nodes;
      const at = rows.findIndex((row) => row.id === app.place.node);
      const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "n" ? 1 : -1)))];
      if (next) app.go({ node: next.id });
    } else if (/^[1-7]$/.test(event.key) && app.place.node !== null) app.go({ tab: stark.TABS[event.key - 1] });
    else if (event.key === "f") document.body.classList.toggle("wide-panel");
    else if (event.key === "+" || event.key === "=") view.tree.zoom(1.3);
    else if (event.key === "-") view.tree.zoom(1 / 1.3);
    else if (event.key === "0") view.tree.fit();
    else return;
    event.preventDefault();
  });
};

stark.helpDialog = () => {
  const { h } = stark;
  return h("dialog", { class: "help" }, h("h2", null, "Keyboard"), h("dl", { class: "pairs" }, stark.KEYS.map(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)])),
    h("p", { class: "dim" }, "In the tree: drag to pan, Ctrl and wheel to zoom. The address of the page is a link to what you see."),
    h("form", { method: "dialog" }, h("button", null, "Close")));
};

// Finds nodes by number or by words of their plan, log or notes.
stark.findDialog = (app) => {
  const { h } = stark;
  const input = h("input", { type: "search", placeholder: "Node number, or words of a plan or an error", "aria-label": "Find a node" });
  const list = h("div", { class: "found", role: "listbox" });
  const dialog = h("dialog", { class: "finder" }, input, list);
  let chosen = 0;
  let found = [];
  const draw = () => stark.fill(list, found.map((row, index) =>
    h("button", { type: "button", role: "option", "aria-selected": index === chosen, onclick: () => pick(row) }, h("b", null, row.id === 0 ? "root" : `#${row.id}`), stark.badge(stark.kindOf(row, app.view.document.nodes[0]?.ms)), h("span", { class: "cut" }, stark.visible(row.advice || row.log)))));
  const look = () => {
    const words = input.value.trim().toLowerCase();
    const number = words.replace("#", "");
    const { nodes } = app.view.document;
    const exact = nodes.filter((row) => String(row.id) === number);
    const others = nodes.filter((row) => String(row.id) !== number && words && `#${row.id} ${row.role} ${row.outcome} ${row.advice} ${row.log}`.toLowerCase().includes(words));
    found = [...exact, ...others].slice(0, 30);
    chosen = 0;
    draw();
  };
  const pick = (row) => {
    dialog.close();
    app.go({ node: row.id });
    app.view.tree.canvas.focus({ preventScroll: true });
  };
  input.addEventListener("input", look);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      chosen = Math.max(0, Math.min(found.length - 1, chosen + (event.key === "ArrowDown" ? 1 : -1)));
      draw();
      event.preventDefault();
    } else if (event.key === "Enter" && found[chosen]) {
      pick(found[chosen]);
      event.preventDefault();
    }
  });
  return Object.assign(dialog, { look });
};
