// Draws the search tree on a canvas: shape and colour by outcome, label by speed-up, the path of the best highlighted.
"use strict";

const PILL = { width: 132, height: 26 };
const OUTLINE = 560; // below this width the tree is an outline
const DETAIL = 0.5; // below this scale only shapes are drawn

stark.Tree = class {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.places = new Map();
    this.selected = null;
    this.view = { x: 0, y: 0, scale: 1 };
    this.isFitted = true;
    this.frames = [];
    this.canvas = stark.h("canvas", {
      tabindex: 0,
      role: "application",
      "aria-label": "Search tree. Arrow keys move, Enter opens a node, the table below lists all nodes.",
    });
    this.hint = stark.h("div", { class: "tip", hidden: true });
    const button = (text, title, act) => stark.h("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    this.element = stark.h("div", { class: "tree" }, this.canvas, this.hint,
      stark.h("div", { class: "zoom" },
        button("+", "Zoom in (+)", () => this.zoom(1.3)),
        button("−", "Zoom out (-)", () => this.zoom(1 / 1.3)),
        button("Fit", "Show the whole tree (0)", () => this.fit())));
    this.listen();
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.element);
  }

  show(run) {
    this.run = run;
    this.rootMs = run.nodes[0]?.ms ?? null;
    this.isOutline = this.element.clientWidth > 0 && this.element.clientWidth < OUTLINE;
    this.places = stark.layout(run.nodes, this.isOutline);
    this.path = new Set(stark.pathTo(this.places, run.winner));
    this.rank = new Map(run.leaders.map((id, index) => [id, index + 1]));
    this.pending = new Map();
    for (const each of run.in_flight) this.pending.set(each.parent, (this.pending.get(each.parent) || 0) + 1);
    this.bounds = { width: PILL.width, height: PILL.height };
    for (const place of this.places.values()) {
      this.bounds.width = Math.max(this.bounds.width, place.x + PILL.width);
      this.bounds.height = Math.max(this.bounds.height, place.y + PILL.height);
    }
    if (this.isFitted) this.fit();
    else this.draw();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const density = window.devicePixelRatio || 1;
    this.size = { width, height, density };
    this.canvas.width = Math.round(width * density);
    this.canvas.height = Math.round(height * density);
    if (this.run && this.isOutline !== (width > 0 && width < OUTLINE)) this.show(this.run);
    else if (this.isFitted && this.bounds) this.fit();
    else this.draw();
  }

  fit() {
    this.isFitted = true;
    if (!this.size?.width || !this.bounds) return;
    const { width, height } = this.size;
    const whole = Math.min((width - 32) / this.bounds.width, (height - 40) / this.bounds.height);
    const scale = Math.max(0.04, Math.min(1.15, whole));
    this.view = { scale, x: Math.max(16, (width - this.bounds.width * scale) / 2), y: (height - (this.bounds.height - PILL.height) * scale) / 2 };
    this.draw();
  }

  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    const scale = Math.max(0.03, Math.min(3, this.view.scale * factor));
    const real = scale / this.view.scale;
    this.isFitted = false;
    this.view = { scale, x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real };
    this.draw();
  }

  pan(dx, dy) {
    this.isFitted = false;
    this.view.x += dx;
    this.view.y += dy;
    this.draw();
  }

  select(id, isQuiet = false) {
    if (!this.places.has(id)) return;
    this.selected = id;
    this.reveal(id);
    this.draw();
    const { row } = this.places.get(id);
    this.canvas.setAttribute("aria-label", `Search tree. ${stark.describeNode(row, this.rootMs)}`);
    if (!isQuiet) this.onSelect(id);
  }

  reveal(id) {
    const { x, y } = this.positionOf(id);
    const { width, height } = this.size || {};
    const edge = 70;
    if (!width || (x > 8 && x < width - edge && y > 20 && y < height - 20)) return;
    this.isFitted = false;
    if (this.view.scale < DETAIL) this.view.scale = 0.9;
    const place = this.places.get(id);
    this.view.x = width * 0.35 - place.x * this.view.scale;
    this.view.y = height / 2 - place.y * this.view.scale;
  }

  // The place of a node on the canvas, in CSS pixels.
  positionOf(id) {
    const { x, y } = this.places.get(id);
    return { x: x * this.view.scale + this.view.x, y: y * this.view.scale + this.view.y };
  }

  nodeAt(x, y) {
    const { scale } = this.view;
    const px = (x - this.view.x) / scale;
    const py = (y - this.view.y) / scale;
    const isSmall = scale < DETAIL;
    const reach = isSmall ? 9 / scale : PILL.height / 2 + 3;
    for (const [id, place] of this.places) {
      if (Math.abs(py - place.y) > reach) continue;
      if (isSmall ? Math.abs(px - place.x - 10) < reach : px > place.x - 3 && px < place.x + PILL.width + 3) return id;
    }
    return null;
  }

  move(direction) {
    const place = this.places.get(this.selected);
    if (!place) return this.select(this.run.winner ?? 0);
    if (direction === "left" && place.parent !== null) this.select(place.parent);
    if (direction === "right" && place.children.length) this.select(place.children[Math.floor((place.children.length - 1) / 2)]);
    if (direction === "up" || direction === "down") {
      const sign = direction === "up" ? -1 : 1;
      const column = [...this.places].filter(([, each]) => each.depth === place.depth && sign * (each.y - place.y) > 0);
      column.sort((one, other) => sign * (one[1].y - other[1].y));
      if (column.length) this.select(column[0][0]);
    }
  }

  listen() {
    let grip = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, y: event.clientY, moved: 0 };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!grip) return this.point(event);
      const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
      grip = { x: event.clientX, y: event.clientY, moved: grip.moved + Math.abs(dx) + Math.abs(dy) };
      if (grip.moved > 4) this.pan(dx, dy);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const found = grip && grip.moved <= 4 ? this.nodeAt(event.offsetX, event.offsetY) : null;
      grip = null;
      if (found !== null) this.select(found);
    });
    this.canvas.addEventListener("pointerleave", () => (this.hint.hidden = true));
    this.canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
      else if (document.activeElement === this.canvas) this.pan(-event.deltaX, -event.deltaY);
      else return; // the page scrolls
      event.preventDefault();
    }, { passive: false });
  }

  point(event) {
    const found = this.nodeAt(event.offsetX, event.offsetY);
    this.canvas.classList.toggle("pointing", found !== null);
    this.hint.hidden = found === null;
    if (found === null) return;
    const { row } = this.places.get(found);
    stark.fill(this.hint, stark.h("b", null, stark.describeNode(row, this.rootMs)), row.advice && stark.h("p", null, stark.visible(row.advice)));
    this.hint.style.left = `${Math.min(event.offsetX + 14, this.size.width - 290)}px`;
    this.hint.style.top = `${event.offsetY + 18}px`;
  }

  draw() {
    if (this.isWaiting || !this.size) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.paint();
    });
  }

  paint() {
    const context = this.canvas.getContext("2d");
    const { width, height, density } = this.size;
    const { x, y, scale } = this.view;
    const style = stark.colours();
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    context.setTransform(density * scale, 0, 0, density * scale, x * density, y * density);
    const top = -y / scale - 40;
    const bottom = (height - y) / scale + 40;
    this.paintEdges(context, style, top, bottom, scale);
    context.font = `600 12px ${style.font}`;
    context.textBaseline = "middle";
    for (const [id, place] of this.places) {
      if (place.y < top || place.y > bottom) continue;
      if (scale < DETAIL) this.paintDot(context, style, id, place, scale);
      else this.paintPill(context, style, id, place);
    }
  }

  paintEdges(context, style, top, bottom, scale) {
    const isDetailed = scale >= DETAIL;
    for (const isBest of [false, true]) {
      context.beginPath();
      for (const [id, place] of this.places) {
        if (place.parent === null || (this.path.has(id) && this.path.has(place.parent)) !== isBest) continue;
        const parent = this.places.get(place.parent);
        if (Math.max(place.y, parent.y) < top || Math.min(place.y, parent.y) > bottom) continue;
        if (this.isOutline && isDetailed) {
          context.moveTo(parent.x + 13, parent.y + PILL.height / 2);
          context.lineTo(parent.x + 13, place.y - 8);
          context.quadraticCurveTo(parent.x + 13, place.y, place.x, place.y);
          continue;
        }
        const from = parent.x + (isDetailed ? PILL.width : 10);
        const to = place.x + (isDetailed ? 0 : 10);
        context.moveTo(from, parent.y);
        context.bezierCurveTo((from + to) / 2, parent.y, (from + to) / 2, place.y, to, place.y);
      }
      context.strokeStyle = isBest ? style.accent : style.edge;
      context.lineWidth = (isBest ? 3 : 1.3) / Math.min(1, Math.max(scale, 0.3));
      context.stroke();
    }
  }

  paintDot(context, style, id, place, scale) {
    const kind = stark.kindOf(place.row, this.rootMs);
    const size = Math.min(9, 4.2 / scale) * (id === this.run.winner ? 1.7 : 1);
    if (id === this.selected) stark.ring(context, place.x + 10, place.y, size * 1.8, style.focus);
    stark.shape(context, stark.OUTCOMES[kind].shape, place.x + 10, place.y, size, style[kind]);
  }

  paintPill(context, style, id, { row, x, y }) {
    const kind = stark.kindOf(row, this.rootMs);
    const colour = style[kind];
    const isBest = id === this.run.winner;
    if (id === this.selected) {
      context.beginPath();
      context.roundRect(x - 4, y - PILL.height / 2 - 4, PILL.width + 8, PILL.height + 8, 17);
      context.fillStyle = style.focus;
      context.fill();
    }
    context.beginPath();
    context.roundRect(x, y - PILL.height / 2, PILL.width, PILL.height, 13);
    context.fillStyle = isBest ? style.best : style.card;
    context.fill();
    context.strokeStyle = this.path.has(id) ? style.accent : colour;
    context.lineWidth = this.path.has(id) ? 2.2 : 1.2;
    context.stroke();
    stark.shape(context, stark.OUTCOMES[kind].shape, x + 14, y, 5.5, colour);
    context.fillStyle = style.dim;
    context.fillText(id === 0 ? "root" : `#${id}`, x + 25, y + 0.5);
    context.fillStyle = kind === "faster" ? style.text : style.dim;
    context.textAlign = "right";
    const label = id === 0 ? stark.format.ms(row.ms) : row.ms && this.rootMs ? stark.format.speed(this.rootMs / row.ms) : stark.SHORT[kind];
    context.fillText(label, x + PILL.width - (this.rank.has(id) ? 22 : 10), y + 0.5);
    context.textAlign = "left";
    if (this.rank.has(id)) stark.star(context, x + PILL.width - 13, y, isBest ? 6.5 : 5, isBest ? style.star : style.dim, isBest);
    if (this.pending.get(id)) {
      context.fillStyle = style.accent;
      context.fillText(`+${this.pending.get(id)}…`, x + PILL.width + 6, y - 9);
    }
  }

  close() {
    this.watcher.disconnect();
  }
};

stark.SHORT = { rejected: "rejected", compile_error: "compile", runtime_error: "runtime", wrong_result: "wrong", timeout: "timeout", crash: "crash", out_of_memory: "memory", unusable_reply: "reply", faster: "", slower: "", reference: "" };

stark.describeNode = (row, rootMs) => {
  const kind = stark.kindOf(row, rootMs);
  const time = row.ms ? `, ${stark.format.ms(row.ms)}` : "";
  const speed = row.ms && rootMs && row.id ? `, ${stark.format.speed(rootMs / row.ms)}` : "";
  return row.id === 0 ? `Root, the reference${time}` : `Node ${row.id} by ${row.role}: ${stark.OUTCOMES[kind].word}${speed}${time}`;
};

stark.ring = (context, x, y, size, colour) => {
  context.beginPath();
  context.arc(x, y, size, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.fill();
};

const POINTS = {
  diamond: [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
  square: [[-0.95, -0.95], [0.95, -0.95], [0.95, 0.95], [-0.95, 0.95]],
  triangle: [[0, -1.1], [1.15, 0.95], [-1.15, 0.95]],
  down: [[0, 1.1], [1.15, -0.95], [-1.15, -0.95]],
  dash: [[-1.1, -0.3], [1.1, -0.3], [1.1, 0.3], [-1.1, 0.3]],
  house: [[0, -1.15], [1.15, -0.1], [0.8, -0.1], [0.8, 1], [-0.8, 1], [-0.8, -0.1], [-1.15, -0.1]],
};

stark.shape = (context, shape, x, y, size, colour) => {
  context.beginPath();
  context.fillStyle = context.strokeStyle = colour;
  if (shape === "disc" || shape === "ring") {
    context.arc(x, y, size * 0.95, 0, 2 * Math.PI);
    context.lineWidth = size / 2.6;
    return shape === "disc" ? context.fill() : context.stroke();
  }
  if (shape === "cross" || shape === "bars") {
    const lines = shape === "cross" ? [[-0.85, -0.85, 0.85, 0.85], [-0.85, 0.85, 0.85, -0.85]] : [[-0.5, -1, -0.5, 1], [0.5, -1, 0.5, 1]];
    for (const [x1, y1, x2, y2] of lines) {
      context.moveTo(x + x1 * size, y + y1 * size);
      context.lineTo(x + x2 * size, y + y2 * size);
    }
    context.lineWidth = size / 2.1;
    return context.stroke();
  }
  for (const [px, py] of POINTS[shape]) context.lineTo(x + px * size, y + py * size);
  context.closePath();
  context.fill();
};

stark.star = (context, x, y, size, colour, isFull) => {
  context.beginPath();
  for (let corner = 0; corner < 10; corner++) {
    const reach = corner % 2 ? size * 0.45 : size;
    const angle = (Math.PI / 5) * corner - Math.PI / 2;
    context.lineTo(x + reach * Math.cos(angle), y + reach * Math.sin(angle));
  }
  context.closePath();
  context.lineWidth = 1.2;
  context.fillStyle = context.strokeStyle = colour;
  if (isFull) context.fill();
  context.stroke();
};

// The colours of the theme, read from the style sheet once for each theme.
stark.colours = () => {
  const theme = document.documentElement.dataset.theme;
  if (stark.colours.theme !== theme) {
    const style = getComputedStyle(document.documentElement);
    const names = ["text", "dim", "edge", "card", "accent", "focus", "best", "star", "grid", "font"];
    const found = names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    const kinds = Object.keys(stark.OUTCOMES).map((kind) => [kind, style.getPropertyValue(`--${kind}`).trim()]);
    stark.colours.theme = theme;
    stark.colours.found = Object.fromEntries([...found, ...kinds]);
  }
  return stark.colours.found;
};
