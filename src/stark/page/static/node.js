// The panel of one node.
"use strict";

stark.TABS = ["Overview", "Changes", "Source", "Plan", "Log", "Timings", "Conversation"];

stark.NodePanel = class {
  // actions: {open(node, tab, other), close(), run(): document, node(id): promise}
  constructor(actions) {
    this.actions = actions;
    this.charts = [];
    this.element = stark.h("aside", { class: "panel", "aria-label": "Node", hidden: true });
  }

  async show(id, tab, other) {
    const ticket = (this.ticket = Symbol("latest"));
    this.element.hidden = false;
    document.body.classList.add("has-panel");
    if (this.id !== id) stark.fill(this.element, stark.h("p", { class: "notice" }, `Reading node ${id} …`));
    try {
      const node = await this.actions.node(id);
      const against = other ?? node.parent;
      const before = against === null || against === id || tab !== "Changes" ? null : await this.actions.node(against);
      if (ticket !== this.ticket) return;
      this.id = id;
      this.draw(node, tab, before, against);
    } catch (error) {
      if (ticket !== this.ticket) return;
      stark.fill(this.element, this.head({ id }), stark.problem(error));
    }
  }

  hide() {
    this.ticket = null;
    this.id = null;
    this.clear();
    this.element.hidden = true;
    document.body.classList.remove("has-panel");
  }

  clear() {
    for (const chart of this.charts) chart.close();
    this.charts = [];
  }

  draw(node, tab, before, against) {
    this.clear();
    const { h } = stark;
    const rows = this.actions.run().nodes;
    const row = rows.find((each) => each.id === node.id);
    const counts = { Conversation: node.calls.length, Log: null, Timings: node.timings.length };
    const tabs = stark.TABS.map((name) =>
      h("button", { role: "tab", type: "button", id: `tab-${name}`, "aria-selected": name === tab, onclick: () => this.actions.open(node.id, name) },
        name, counts[name] ? h("span", { class: "dim" }, counts[name]) : null));
    const body = h("div", { class: "tab-body", role: "tabpanel", "aria-labelledby": `tab-${tab}` });
    stark.fill(this.element, this.head(node, row), h("div", { class: "tabs", role: "tablist" }, tabs), body);
    stark.fill(body, this[`tab${tab}`](node, row, before, against));
    this.element.scrollTop = 0;
    for (const chart of this.charts) chart.draw();
  }

  head(node, row) {
    const { h } = stark;
    const run = this.actions.run();
    const rootMs = run.nodes[0]?.ms;
    const kind = row ? stark.kindOf(row, rootMs) : null;
    return h("header", { class: "panel-head" },
      h("div", null,
        h("h2", null, node.id === 0 ? "Root" : `Node ${node.id}`, run.winner === node.id ? h("span", { class: "best-mark" }, "★ best") : null),
        row ? h("p", null, stark.badge(kind), row.ms && node.id ? h("b", { class: "big-speed" }, rootMs ? stark.format.speed(rootMs / row.ms) : "") : null, row.ms ? h("span", { class: "dim" }, stark.format.ms(row.ms)) : null, row.rule ? h("span", { class: "dim" }, stark.visible(row.rule)) : null) : null),
      h("div", { class: "panel-tools" },
        node.parent === null || node.parent === undefined ? null : h("button", { type: "button", class: "quiet", onclick: () => this.actions.open(node.parent) }, node.parent === 0 ? "↑ root" : `↑ #${node.parent}`),
        h("button", { type: "button", class: "quiet wide-button", title: "Wide panel (f)", onclick: () => document.body.classList.toggle("wide-panel") }, "⇔"),
        h("button", { type: "button", class: "quiet", title: "Close (Esc)", "aria-label": "Close", onclick: () => this.actions.close() }, "✕")));
  }

  tabOverview(node, row) {
    const { h, format } = stark;
    const pair = (name, value) => [h("dt", null, name), h("dd", null, value)];
    const run = this.actions.run();
    const children = run.nodes.filter((each) => each.parent === node.id);
    const share = stark.shareOf(run, row?.ms);
    return [
      node.plan ? h("section", { class: "advice" }, h("h3", null, "Plan"), h("p", { class: "prose clamp" }, stark.visible(node.plan.advice)), h("button", { class: "link", type: "button", onclick: () => this.actions.open(node.id, "Plan") }, "whole plan and its regions")) : null,
      node.timings.length ? h("section", null, h("h3", null, "Time against the baselines"), this.timings(node.timings.filter((each) => !each.is_final))) : null,
      node.explanation ? h("section", null, h("h3", null, "Explanation"), h("p", { class: "prose" }, stark.visible(node.explanation))) : null,
      node.notes.length ? h("section", { class: "notice" }, node.notes.map((note) => h("p", null, stark.visible(note)))) : null,
      node.same_as === null ? null : h("p", { class: "notice" }, `Same source as node ${node.same_as}, so it has the same report.`),
      node.report.log ? h("section", null, h("h3", null, "Log, first lines"), h("pre", { class: "excerpt" }, stark.visible(node.report.log.split("\n").slice(0, 12).join("\n")))) : null,
      node.final ? this.final(node) : null,
      h("section", null, h("h3", null, "Facts"), h("dl", { class: "pairs" },
        pair("made by", node.role), share === null ? null : pair("share of the bound", `${format.percent(share)}${run.bound.is_certain ? "" : ", a hint only"}`), pair("children", children.length ? children.map((child) => h("button", { class: "chip", type: "button", onclick: () => this.actions.open(child.id) }, `#${child.id}`)) : "none"),
        node.outside === null ? null : pair("change outside the regions", format.percent(node.outside)),
        pair("judged in", format.seconds(row?.seconds)), pair("source", row?.lines ? `${row.lines} lines` : "none"),
        node.report.device ? pair("device", stark.visible(node.report.device)) : null)),
      node.report.facts.length ? h("section", null, h("h3", null, "Checks and labels"), h("dl", { class: "pairs" }, node.report.facts.map(([name, text]) => pair(stark.visible(name), stark.visible(text))))) : null,
    ];
  }

  final(node) {
    const { h } = stark;
    const final = this.actions.run().final;
    const lines = Object.entries(final.scores).map(([score, each]) =>
      h("li", null, h("b", null, score), score === final.score ? " (decides): " : ": ", each.interval ? `${stark.format.interval(each.interval)} as fast as eager, with 99 % confidence` : each.outcome.replaceAll("_", " ")));
    const dropIn = final.drop_in ? h("li", null, h("b", null, "drop-in"), ": ", final.drop_in.holds ? "holds" : "does not hold", final.drop_in.interval ? `, ${stark.format.interval(final.drop_in.interval)}` : "") : null;
    return h("section", null, h("h3", null, "Final check"), h("p", null, node.final.holds ? "Rebuilt with torch's own toolchain and measured again: it holds." : "Rebuilt with torch's own toolchain and measured again: it does not hold."), h("ul", null, lines, dropIn));
  }

  tabChanges(node, _, before, against) {
    const { h } = stark;
    const nodes = this.actions.run().nodes.filter((row) => row.id !== node.id && row.lines !== null);
    const choice = h("select", { "aria-label": "Compare with", onchange: (event) => this.actions.open(node.id, "Changes", Number(event.target.value)) },
      nodes.map((row) => h("option", { value: row.id, selected: row.id === against }, row.id === 0 ? "root" : `#${row.id}${row.id === node.parent ? " (parent)" : ""}`)));
    const tools = h("div", { class: "tools" }, h("label", null, "Compare with ", choice), h("button", { type: "button", class: "quiet columns-button", onclick: () => document.body.classList.toggle("one-column") }, "One column / two"));
    if (node.source === null) return h("p", { class: "notice" }, "The reply held no source.");
    if (!before) return [tools, h("p", { class: "notice" }, "The root has no parent. Choose a node to compare it with.")];
    if (before.source === null) return [tools, h("p", { class: "notice" }, `Node ${against} has no source.`)];
    return [tools, stark.diffView(before.source, node.source, { left: against === 0 ? "root" : `#${against}`, right: node.id === 0 ? "root" : `#${node.id}` })];
  }

  tabSource(node) {
    if (node.source === null) return stark.h("p", { class: "notice" }, "The reply held no source.");
    const dropIn = node.final?.drop_in ? stark.h("details", { class: "message" }, stark.h("summary", null, "The drop-in made of it"), stark.codeView(node.final.drop_in.source, { language: "python", label: "best.py" })) : null;
    return [stark.codeView(node.source, { language: "python", label: node.id === 0 ? "Model" : "ModelNew" }), dropIn];
  }

  tabPlan(node) {
    const { h } = stark;
    if (!node.plan) return h("p", { class: "notice" }, "This node was made without a plan.");
    const { plan } = node;
    return [
      h("p", { class: "prose" }, stark.visible(plan.advice)),
      plan.grounded ? h("p", { class: "dim" }, `Grounded: ${plan.regions.length} marked ${plan.regions.length === 1 ? "region" : "regions"}, lines ${plan.regions.map(([first, last]) => `${first} to ${last}`).join(", ")}.`) : h("div", { class: "notice" }, h("p", null, "Not grounded."), plan.violations.map((text) => h("p", null, stark.visible(text)))),
      plan.scaffold ? stark.codeView(plan.scaffold, { language: "python", regions: plan.regions, label: "Scaffold with marked regions" }) : null,
    ];
  }

  tabLog(node) {
    const { log, profile } = node.report;
    return [
      log ? stark.codeView(log, { label: "Compiler and run" }) : stark.h("p", { class: "notice" }, "There is no log: nothing failed."),
      profile ? stark.codeView(profile, { label: "Profile" }) : stark.h("p", { class: "dim" }, "No profile is stored."),
    ];
  }

  tabTimings(node) {
    const { h, format } = stark;
    if (!node.timings.length) return h("p", { class: "notice" }, "This node was not timed.");
    const first = node.timings[0];
    const line = (each) => h("tr", null, h("td", null, each.name), h("td", { class: "number-cell" }, format.ms(each.median_ms)), h("td", { class: "number-cell" }, `${format.ms(each.interval_ms[0])} – ${format.ms(each.interval_ms[1])}`), h("td", { class: "number-cell" }, each.samples_ms.length), h("td", { class: "number-cell" }, each === first ? "" : format.speed(each.median_ms / first.median_ms)));
    return [this.timings(node.timings), h("div", { class: "table-box" }, h("table", null, h("thead", null, h("tr", null, ["timing", "median", "99 % interval", "samples", "time ÷ this node"].map((name, index) => h("th", { class: index ? "number-cell" : null }, name)))), h("tbody", null, node.timings.map(line))))];
  }

  timings(timings) {
    const chart = stark.timingChart(timings);
    this.charts.push(chart);
    return chart.element;
  }

  tabConversation(node) {
    return stark.conversation(node.calls, (id) => this.actions.open(id));
  }
};

stark.problem = (error) => stark.h("div", { class: "notice problem", role: "alert" }, stark.h("p", null, stark.visible(error.message)), error.hint ? stark.h("p", null, stark.visible(error.hint)) : null);
