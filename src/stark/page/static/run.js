// The view of one run.
"use strict";

const headOf = ({ nodes, first, ...head }) => JSON.stringify(head);

const boundNote = (bound) => {
  if (!bound.ms) return "shorter algebra was found";
  if (bound.is_followed) return `shorter algebra was found; ${stark.format.ms(bound.ms)} to move inputs and outputs`;
  return `${bound.is_certain ? "" : "a hint only; "}${stark.format.ms(bound.ms)}, limited by ${bound.limit}`;
};

stark.RunView = class {
  constructor(source, { store, run }, go) {
    Object.assign(this, { source, store, run, go });
    this.cache = new Map();
    this.tree = new stark.Tree((id) => go({ node: id }));
    this.panel = new stark.NodePanel({
      open: (node, tab, other) => go({ node, tab: tab ?? this.tab ?? "Overview", other }),
      close: () => go({ node: null }),
      run: () => this.document,
      node: (id) => this.node(id),
    });
    this.charts = [stark.bestChart(() => this.document), stark.costChart(() => this.document)];
    this.summary = stark.h("section", { class: "cards", "aria-label": "Summary" });
    this.flight = stark.h("section", { class: "flight", "aria-live": "polite" });
    this.filters = { kinds: new Set() };
    this.element = stark.h("main", { class: "run" });
  }

  async start() {
    this.document = await this.source.run(this.store, this.run, 0);
    this.build(); // the app draws it once it has a size
    this.stop = this.source.follow(this.store, () => this.update(), (isOpen) => stark.showConnection(isOpen));
    return this;
  }

  close() {
    this.stop?.();
    this.tree.close();
    this.panel.hide();
    for (const chart of this.charts) chart.close();
    clearInterval(this.ticking);
  }

  // One request at a time; whatever changes meanwhile is read by the next one.
  async update() {
    if (this.isReading) return void (this.isStale = true);
    this.isReading = true;
    try {
      do {
        this.isStale = false;
        const news = await this.source.run(this.store, this.run, this.document.nodes.length);
        const isSame = news.created_at === this.document.created_at && news.first === this.document.nodes.length;
        if (isSame && !news.nodes.length && headOf(news) === headOf(this.document)) continue;
        this.document = isSame ? { ...news, nodes: [...this.document.nodes, ...news.nodes] } : await this.source.run(this.store, this.run, 0);
        this.cache.delete(this.document.winner);
        this.refresh();
      } while (this.isStale);
    } catch (error) {
      stark.fill(this.flight, stark.problem(error));
    }
    this.isReading = false;
  }

  async node(id) {
    if (!this.cache.has(id)) {
      if (this.cache.size > 40) this.cache.delete(this.cache.keys().next().value);
      const asked = this.source.node(this.store, this.run, id);
      this.cache.set(id, asked);
      asked.catch(() => this.cache.delete(id));
    }
    return this.cache.get(id);
  }

  build() {
    const { h } = stark;
    const search = h("input", { type: "search", class: "filter", placeholder: "Filter: #7, plan, error …", "aria-label": "Filter attempts", oninput: (event) => this.table.set({ text: event.target.value }) });
    this.table = this.makeTable();
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Outcomes" });
    this.missing = h("section", { class: "missing", "aria-label": "Missing" });
    const card = (title, ...content) => h("section", { class: "card" }, h("h2", null, title), content);
    stark.fill(this.element, this.summary, this.flight,
      h("div", { class: "two" },
        h("section", { class: "card tree-card" }, h("h2", null, "Search tree", this.legend()), this.tree.element),
        h("div", { class: "charts" }, card("Best so far", this.charts[0].element), card("Cost", this.charts[1].element))),
      this.missing,
      h("section", { class: "card" }, h("h2", null, "Attempts"), h("div", { class: "tools" }, search, this.chips), this.table.element),
      this.setup(), this.panel.element);
  }

  makeTable() {
    const { h, format } = stark;
    const rootMs = () => this.document.nodes[0]?.ms;
    const costs = () => (this.costs ||= new Map(this.document.costs.map(([number, tokens, usd]) => [number, { tokens, usd }])));
    const speed = (row) => (row.ms && rootMs() && row.id ? rootMs() / row.ms : null);
    const kind = (row) => stark.kindOf(row, rootMs());
    return stark.table({
      rows: this.document.nodes,
      keyOf: (row) => row.id,
      onOpen: (row) => this.go({ node: row.id }),
      textOf: (row) => `#${row.id} ${row.role} ${stark.OUTCOMES[kind(row)].word} ${row.rule || ""} ${row.advice} ${row.log} ${row.notes.join(" ")}`,
      sortBy: "node",
      columns: [
        { name: "node", of: (row) => row.id, cell: (row) => [row.id === 0 ? "root" : `#${row.id}`, row.id === this.document.winner ? h("span", { class: "best-mark", title: "best" }, " ★") : null], isNumber: true },
        { name: "parent", of: (row) => row.parent, cell: (row) => (row.parent === null ? "" : row.parent === 0 ? "root" : `#${row.parent}`), isNumber: true, class: "wide-only" },
        { name: "by", of: (row) => row.role, cell: (row) => h("span", { class: `role role-${row.role}` }, row.role) },
        { name: "outcome", of: (row) => kind(row), cell: (row) => stark.badge(kind(row)) },
        { name: "speed-up", of: speed, cell: (row) => (row.id ? format.speed(speed(row)) : ""), isNumber: true, isBestHigh: true },
        { name: "time", of: (row) => row.ms, cell: (row) => format.ms(row.ms), isNumber: true },
        { name: "of bound", title: stark.HINT, of: (row) => stark.shareOf(this.document, row.ms), cell: (row) => format.share(stark.shareOf(this.document, row.ms), this.document.bound?.is_certain), isNumber: true, isBestHigh: true },
        { name: "plan or error", of: (row) => row.advice || row.log, cell: (row) => h("span", { class: "cut" }, stark.visible(row.outcome === "ok" ? row.advice : row.log || row.rule || row.advice)), class: "text-cell" },
        { name: "tokens", of: (row) => costs().get(row.id)?.tokens, cell: (row) => (costs().has(row.id) ? format.tokens(costs().get(row.id).tokens) : ""), isNumber: true },
        { name: "cost", of: (row) => costs().get(row.id)?.usd, cell: (row) => (costs().has(row.id) && this.document.spent.usd !== null ? format.usd(costs().get(row.id).usd) : ""), isNumber: true },
        { name: "judged in", of: (row) => row.seconds, cell: (row) => format.seconds(row.seconds), isNumber: true },
      ],
    });
  }

  refresh() {
    const run = this.document;
    this.costs = null;
    this.tree.show(run);
    for (const chart of this.charts) chart.draw();
    this.table.set({ rows: run.nodes, isChosen: (row) => !this.filters.kinds.size || this.filters.kinds.has(stark.kindOf(row, run.nodes[0]?.ms)) });
    this.drawSummary();
    this.drawChips();
    this.drawFlight();
    stark.fill(this.missing, run.missing.map((text) => stark.h("span", null, stark.visible(text))));
    this.missing.hidden = !run.missing.length;
    stark.showRun(run);
  }

  drawSummary() {
    const { h, format } = stark;
    const run = this.document;
    const card = (name, value, note, extra) => h("div", { class: "figure" }, h("h3", null, name), h("p", { class: "value" }, value), h("p", { class: "dim" }, note), extra);
    const check = run.final?.scores[run.final.score];
    const best = run.nodes.find((row) => row.id === run.winner);
    const rootMs = check?.reference_ms ?? run.nodes[0]?.ms;
    const bestMs = run.final?.holds ? check.ms : best?.ms;
    const attempts = run.nodes.filter((row) => !["reference", "given"].includes(row.role));
    const correct = attempts.filter((row) => row.outcome === "ok").length;
    const speed = bestMs && rootMs ? rootMs / bestMs : null;
    const slower = speed !== null && speed < 1 ? "slower than eager; " : "";
    const isUnsure = run.final?.holds && check.interval && check.interval[0] <= 1;
    const share = stark.shareOf(run, bestMs);
    const proof = isUnsure ? `${slower}correct, not surely faster: ${format.interval(check.interval)}` : run.final?.holds ? `${slower}confirmed, ${format.interval(check.interval) || "no interval"}` : run.final ? "the final check did not hold" : best ? `${slower}from the search, not confirmed` : "no correct kernel yet";
    const progress = h("progress", { max: run.budget.attempts || 1, value: Math.min(attempts.length, run.budget.attempts), "aria-label": "Attempts made" });
    const tokens = run.spent.tokens ? `${format.tokens(run.spent.tokens)} tokens` : "no tokens";
    stark.fill(this.summary,
      card("Best kernel", h("span", { class: "hero" }, format.speed(speed)), proof, best ? h("button", { class: "link", type: "button", onclick: () => this.go({ node: best.id }) }, `open node ${best.id}`) : null),
      card("Time per call", [h("span", null, format.ms(bestMs))], rootMs ? `eager ${format.ms(rootMs)}` : "eager was not timed", run.baselines.filter((each) => each.ms && each.name !== "eager").map((each) => h("p", { class: "dim" }, `${each.name.replace(" default", "")} ${format.ms(each.ms)}`))),
      run.bound ? card("Share of the bound", share === null ? "not known" : format.share(share, run.bound.is_certain), boundNote(run.bound)) : null,
      card("Attempts", `${attempts.length} of ${run.budget.attempts}`, `${correct} correct, ${attempts.length - correct} failed`, progress),
      card("Spent", run.spent.usd === null ? tokens : format.usd(run.spent.usd), run.spent.usd === null ? "the price is not known" : `${tokens}, limit ${format.usd(run.budget.usd)}`),
      card("Time", format.seconds(run.seconds), run.is_live ? "still running" : run.ending ? run.ending.meaning : "interrupted"));
  }

  drawChips() {
    const rootMs = this.document.nodes[0]?.ms;
    const counts = new Map();
    for (const row of this.document.nodes) counts.set(stark.kindOf(row, rootMs), (counts.get(stark.kindOf(row, rootMs)) || 0) + 1);
    stark.fill(this.chips, [...counts].map(([kind, count]) => {
      const button = stark.h("button", { type: "button", class: `chip kind-${kind}`, "aria-pressed": this.filters.kinds.has(kind) }, stark.badge(kind), stark.h("span", { class: "dim" }, count));
      button.addEventListener("click", () => {
        if (!this.filters.kinds.delete(kind)) this.filters.kinds.add(kind);
        button.setAttribute("aria-pressed", this.filters.kinds.has(kind));
        this.table.set({});
      });
      return button;
    }));
  }

  // Attempts in flight with their stage and seconds since this page first saw it.
  drawFlight() {
    const now = Date.now();
    const seen = this.seen || new Map();
    this.seen = new Map();
    for (const each of this.document.in_flight) {
      const stage = each.is_waiting ? `waiting for reply ${each.calls + 1}` : each.calls ? "building, checking, timing" : "beginning";
      const key = `${each.number} ${stage}`;
      this.seen.set(key, { ...each, stage, since: seen.get(key)?.since ?? now });
    }
    clearInterval(this.ticking);
    const draw = () => stark.fill(this.flight, [...this.seen.values()].map((each) =>
      stark.h("span", { class: "pill" }, stark.h("span", { class: "spinner", "aria-hidden": "true" }), stark.h("b", null, `#${each.number}`), ` on ${each.parent === 0 ? "root" : `#${each.parent}`}: ${each.stage}, ${Math.round((Date.now() - each.since) / 1000)} s`)));
    draw();
    this.flight.hidden = !this.seen.size;
    if (this.seen.size) this.ticking = setInterval(draw, 1000);
  }

  legend() {
    return stark.h("details", { class: "legend" }, stark.h("summary", null, "Legend"), stark.h("div", null,
      Object.keys(stark.OUTCOMES).map((kind) => stark.badge(kind)), stark.h("span", null, "★ best, ☆ leader"), stark.h("span", null, "thick line: path of the best")));
  }

  setup() {
    const { h } = stark;
    const run = this.document;
    const pair = (name, value) => [h("dt", null, name), h("dd", null, stark.visible(value))];
    const usage = Object.entries(run.usage).map(([role, each]) => pair(`${role} agent`, `${each.calls} calls, ${stark.format.tokens(each.input_tokens)} tokens in, ${stark.format.tokens(each.output_tokens)} out, ${stark.format.usd(each.usd)}`));
    return h("details", { class: "card setup" }, h("summary", null, "How this run was set up"),
      h("dl", { class: "pairs" }, pair("run", run.run), pair("began", run.created_at), pair("method", run.method), pair("models", run.models.join(", ") || "none"), pair("target", run.target), pair("score", run.score), pair("seed", run.seed), pair("device", `${run.device} (${Object.entries(run.tools).map((tool) => tool.join(" ")).join(", ")})`), run.task.hint ? pair("hint", run.task.hint) : null, run.bound?.facts.map(([name, text]) => pair(name, text)), usage, Object.entries(run.versions).map(([name, version]) => pair(name, version))),
      stark.codeView(JSON.stringify(run.settings, null, 2), { label: "All settings" }));
  }

  async show({ node, tab, other }) {
    this.tab = tab;
    if (node === null || node === undefined) {
      this.tree.selected = null;
      this.tree.draw();
      this.table.select(null);
      return this.panel.hide();
    }
    this.tree.select(node, true);
    this.table.select(node);
    await this.panel.show(node, stark.TABS.includes(tab) ? tab : "Overview", other);
  }
};
