// The frame of the page: address, theme, header, and the view that the address names.
"use strict";

stark.App = class {
  constructor() {
    const data = stark.embedded();
    this.source = data ? stark.heldBy(data) : stark.served;
    this.place = {};
    this.view = null;
    this.turnTheme(stark.remember("theme"));
    this.build();
    window.addEventListener("hashchange", () => this.follow());
    stark.listenToKeys(this);
    this.follow();
  }

  build() {
    const { h } = stark;
    const button = (text, title, act, more) => h("button", { type: "button", class: "quiet", title, "aria-label": title, onclick: act, ...more }, text);
    this.title = h("h1", null, "STARK");
    this.sub = h("span", { class: "sub" });
    this.state = h("span", { class: "state" });
    this.connection = h("span", { class: "connection", role: "status", hidden: true }, "⚠ connection lost, trying again");
    this.body = h("div", { class: "body" }, h("p", { class: "notice" }, "Reading …"));
    this.finder = stark.findDialog(this);
    this.helper = stark.helpDialog();
    document.getElementById("app").append(
      h("header", { class: "top" }, h("a", { class: "brand", href: "#/", title: "All runs" }, "STARK"), h("div", { class: "titles" }, this.title, this.sub), this.state, this.connection,
        h("div", { class: "top-tools" }, this.findButton = button("⌕ Find", "Find a node (/)", () => this.find()), button("◐", "Light or dark (t)", () => this.turnTheme()), button("?", "Keyboard (?)", () => this.help()))),
      this.body, this.finder, this.helper);
    stark.showRun = (run) => this.showRun(run);
    stark.showTitle = (...words) => this.showTitle(...words);
    stark.showConnection = (isOpen) => (this.connection.hidden = isOpen);
    const go = (change) => this.go(change);
    this.goTo = Object.assign(go, { to: (place) => (window.location.hash = this.link(place)), link: (place) => this.link(place) });
  }

  link({ store, run, node, tab, other }) {
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries({ store, run, node, tab, other })) if (value !== null && value !== undefined) words.set(name, value);
    return `#/run?${words}`;
  }

  // Changes a part of the address: go({node: 7}).
  go(change) {
    const place = { ...this.place, ...change };
    if ("node" in change && !("tab" in change) && change.node === null) place.tab = null;
    if (!("other" in change)) place.other = null;
    const hash = this.link(place);
    if (hash !== window.location.hash) window.location.hash = hash;
  }

  read() {
    const words = new URLSearchParams(window.location.hash.split("?")[1] || "");
    const number = (name) => (/^\d{1,9}$/.test(words.get(name) || "") ? Number(words.get(name)) : null);
    return { store: words.get("store"), run: words.get("run"), node: number("node"), tab: words.get("tab"), other: number("other") };
  }

  async follow() {
    const place = this.read();
    const isSame = this.view && this.place.store === place.store && this.place.run === place.run && (place.run !== null) === this.view instanceof stark.RunView;
    this.place = place;
    if (!isSame && !(await this.open(place))) return;
    await this.view.show(this.place);
  }

  async open(place) {
    const turn = (this.turn = Symbol("latest"));
    this.view?.close();
    this.view = null;
    try {
      let view = place.run === null ? await new stark.RunsView(this.source, this.goTo).start() : null;
      if (view?.only) {
        Object.assign(place, view.only);
        view.close();
        view = null;
        history.replaceState(null, "", this.link(place));
      }
      view ||= await new stark.RunView(this.source, place, this.goTo).start();
      if (turn !== this.turn) return view.close();
      this.view = view;
      this.findButton.hidden = !(view instanceof stark.RunView);
      stark.fill(this.body, view.element);
      if (view.document) view.refresh();
      return true;
    } catch (error) {
      if (turn === this.turn) stark.fill(this.body, stark.problem(error));
      return false;
    }
  }

  showRun(run) {
    this.showTitle(run.task.name, `${run.method} on ${run.device}`, run.is_live, run.is_live ? "live" : run.ending ? run.ending.meaning : "interrupted");
  }

  showTitle(title, sub, isLive, state = isLive ? "live" : "") {
    document.title = `${title} – STARK`;
    this.title.textContent = stark.visible(title);
    this.sub.textContent = stark.visible(sub);
    this.state.textContent = state && `${isLive ? "● " : "✓ "}${state}`;
    this.state.classList.toggle("live", isLive);
  }

  find() {
    if (!(this.view instanceof stark.RunView)) return this.view?.filter?.focus();
    this.finder.showModal();
    const input = this.finder.querySelector("input");
    input.select();
    this.finder.look();
  }

  help() {
    this.helper.showModal();
  }

  escape() {
    if (!this.finder.open && !this.helper.open && this.place.node !== null) this.go({ node: null });
  }

  turnTheme(theme) {
    const root = document.documentElement;
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const next = theme ?? (theme === null ? dark : root.dataset.theme === "dark" ? "light" : "dark");
    root.dataset.theme = next === "dark" ? "dark" : "light";
    if (theme === undefined) stark.remember("theme", root.dataset.theme);
    this.view?.tree?.draw();
    document.dispatchEvent(new Event("stark-theme"));
  }
};

stark.app = new stark.App();
