// The list of many runs, and the matrix of a benchmark: tasks by methods.
"use strict";

const STATES = { waiting: "◌ waiting", running: "◐ running", stopped: "‖ stopped", fault: "✕ fault", ended: "✓ ended" };
const MAX_CELLS = 4000;

stark.RunsView = class {
  constructor(source, go) {
    Object.assign(this, { source, go });
    this.element = stark.h("main", { class: "runs" });
  }

  async start() {
    this.index = await this.source.index();
    this.draw();
    this.stop = this.source.follow(null, () => this.later(), (isOpen) => stark.showConnection(isOpen));
    return this;
  }

  close() {
    this.stop?.();
    clearTimeout(this.waiting);
  }

  // At most one request in two seconds: a list of many runs changes all the time.
  later() {
    this.waiting ||= setTimeout(async () => {
      this.waiting = null;
      try {
        this.index = await this.source.index();
        this.draw();
      } catch (error) {
        stark.fill(this.element, stark.problem(error));
      }
    }, 2000);
  }

  get only() {
    const runs = this.index.stores.flatMap(({ store, runs: found }) => found.map((run) => ({ store, run: run.run })));
    return runs.length === 1 ? runs[0] : null;
  }

  draw() {
    const { h } = stark;
    const rows = this.index.stores.flatMap(({ store, runs }) => runs.map((run) => ({ store, ...run })));
    const broken = this.index.stores.filter((each) => each.error);
    const searches = rows.filter((row) => row.kind !== "baselines");
    const done = searches.filter((row) => row.state === "ended").length;
    const running = searches.filter((row) => row.state === "running").length;
    stark.showTitle(this.index.title, `${searches.length} runs`, running > 0);
    if (!this.table) {
      this.table = this.makeTable(rows);
      this.filter = h("input", { type: "search", class: "filter", placeholder: "Filter runs …", "aria-label": "Filter runs", oninput: (event) => this.table.set({ text: event.target.value }) });
      this.matrix = h("section", { class: "card" });
      this.cards = h("section", { class: "cards", "aria-label": "Summary" });
      this.problems = h("section", null);
      this.element.append(this.cards, this.problems, this.matrix, h("section", { class: "card" }, h("h2", null, "Runs"), h("div", { class: "tools" }, this.filter), this.table.element));
    }
    this.table.set({ rows });
    const faster = searches.filter((row) => row.speedup > 1);
    const usd = searches.map((row) => row.spent.usd);
    const card = (name, value, note, extra) => h("div", { class: "figure" }, h("h3", null, name), h("p", { class: "value" }, value), h("p", { class: "dim" }, note), extra);
    const mean = faster.length ? Math.exp(faster.reduce((sum, row) => sum + Math.log(row.speedup), 0) / faster.length) : null;
    stark.fill(this.cards,
      card("Runs", `${done} of ${searches.length}`, running ? `ended; ${running} running` : "ended", h("progress", { max: searches.length || 1, value: done, "aria-label": "Runs ended" })),
      card("Faster than eager", String(faster.length), `of ${searches.length} runs`),
      card("Mean speed-up", stark.format.speed(mean), "geometric, of the faster ones"),
      card("Spent", usd.includes(null) ? stark.format.tokens(searches.reduce((sum, row) => sum + row.spent.tokens, 0)) : stark.format.usd(usd.reduce((sum, each) => sum + each, 0)), usd.includes(null) ? "tokens; a price is not known" : "all runs"));
    stark.fill(this.problems, broken.map((each) => h("div", { class: "notice problem" }, h("p", null, stark.visible(`${each.store}: ${each.error}`)), h("p", null, stark.visible(each.hint)))));
    this.problems.hidden = !broken.length;
    this.drawMatrix(searches);
  }

  drawMatrix(rows) {
    const { h, format } = stark;
    const methods = [...new Set(rows.map((row) => row.method))].sort();
    const tasks = [...new Map(rows.map((row) => [row.task, row])).values()].sort((one, other) => (one.level ?? 99) - (other.level ?? 99) || (one.number ?? 0) - (other.number ?? 0) || one.task.localeCompare(other.task));
    this.matrix.hidden = (tasks.length < 2 && methods.length < 2) || tasks.length * methods.length > MAX_CELLS;
    if (this.matrix.hidden) return;
    const cells = new Map();
    for (const row of rows) cells.set(`${row.task}\n${row.method}`, [...(cells.get(`${row.task}\n${row.method}`) || []), row]);
    const cell = (task, method) => h("td", null, (cells.get(`${task}\n${method}`) || []).map((row) => {
      const level = row.speedup === null ? "none" : row.speedup < 1 ? "slow" : row.speedup < 1.5 ? "a" : row.speedup < 3 ? "b" : "c";
      const text = row.speedup === null ? (row.state === "ended" ? "✕ none" : STATES[row.state]) : `${format.speed(row.speedup)}${row.speedup < 1 ? " slower" : ""}`;
      return h("a", { class: `cell cell-${level}`, href: this.go.link({ store: row.store, run: row.run }), title: `${row.attempts} of ${row.budget} attempts, ${row.correct} correct; ${row.is_confirmed ? "confirmed" : "not confirmed"}; seed ${row.seed}` },
        text, row.is_confirmed ? h("span", { class: "tick", title: "confirmed" }, "✓") : null, row.state === "running" ? h("span", { class: "spinner" }) : null);
    }));
    stark.fill(this.matrix, h("h2", null, "Task by method"), h("div", { class: "table-box" }, h("table", { class: "matrix" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "task"), methods.map((method) => h("th", { scope: "col" }, stark.visible(method))))),
      h("tbody", null, tasks.map((task) => h("tr", null, h("th", { scope: "row" }, task.level === null ? null : h("span", { class: "dim" }, `L${task.level} `), stark.visible(task.task)), methods.map((method) => cell(task.task, method))))))),
      h("p", { class: "dim" }, "Speed-up over eager, one entry for each run. ✓ confirmed by a final check. A click opens the run."));
  }

  makeTable(rows) {
    const { h, format } = stark;
    return stark.table({
      rows,
      keyOf: (row) => `${row.store}/${row.run}`,
      onOpen: (row) => this.go.to({ store: row.store, run: row.run }),
      textOf: (row) => `${row.store} ${row.run} ${row.task} ${row.method} ${row.state} ${row.device}`,
      sortBy: "task",
      columns: [
        { name: "task", of: (row) => row.task, cell: (row) => h("a", { href: this.go.link({ store: row.store, run: row.run }) }, stark.visible(row.task)) },
        { name: "method", of: (row) => row.method, cell: (row) => stark.visible(row.kind === "baselines" ? "baselines" : row.method) },
        { name: "speed-up", of: (row) => row.speedup, cell: (row) => [format.speed(row.speedup), row.speedup !== null && row.speedup < 1 ? " slower" : ""], isNumber: true, isBestHigh: true },
        { name: "interval", of: (row) => row.interval?.[0], cell: (row) => format.interval(row.interval), class: "wide-only" },
        { name: "eager", of: (row) => row.root_ms, cell: (row) => format.ms(row.root_ms), isNumber: true },
        { name: "best", of: (row) => row.best_ms, cell: (row) => format.ms(row.best_ms), isNumber: true },
        { name: "of bound", title: stark.HINT, of: (row) => row.share, cell: (row) => format.share(row.share, row.is_bound_certain), isNumber: true, isBestHigh: true },
        { name: "attempts", of: (row) => row.attempts, cell: (row) => (row.kind === "baselines" ? "" : `${row.attempts} of ${row.budget}`), isNumber: true },
        { name: "correct", of: (row) => row.correct, cell: (row) => row.correct, isNumber: true },
        { name: "cost", of: (row) => row.spent.usd ?? row.spent.tokens, cell: (row) => (row.spent.usd === null ? `${format.tokens(row.spent.tokens)} tokens` : format.usd(row.spent.usd)), isNumber: true },
        { name: "state", of: (row) => row.state, cell: (row) => h("span", { title: row.message || row.ending }, STATES[row.state]) },
        { name: "age", of: (row) => row.created_at, cell: (row) => format.ago(row.created_at), isNumber: true },
        { name: "folder", of: (row) => row.store, cell: (row) => h("span", { class: "cut" }, stark.visible(row.store)), class: "wide-only" },
      ],
    });
  }

  show() {}
};
