// The difference of two sources, side by side or in one column. Lines are compared by the library jsdiff.
"use strict";

const AROUND = 4; // equal lines shown next to a change
const SHORTEST_FOLD = 4;
const PATIENCE = { timeout: 2000 };

// Returns [{kind: "same" | "changed", left, right}] with line indices or null.
const pairLines = (before, after) => {
  const parts = window.Diff.diffArrays(before, after, PATIENCE);
  if (!parts) return null;
  const pairs = [];
  let [left, right, removed] = [0, 0, []];
  const flush = () => {
    for (const index of removed) pairs.push({ kind: "changed", left: index, right: null });
    removed = [];
  };
  for (const part of parts) {
    if (part.removed) for (let n = 0; n < part.count; n++) removed.push(left++);
    else if (part.added) for (let n = 0; n < part.count; n++) pairs.push({ kind: "changed", left: removed.shift() ?? null, right: right++ });
    else {
      flush();
      for (let n = 0; n < part.count; n++) pairs.push({ kind: "same", left: left++, right: right++ });
    }
    if (part.added) flush();
  }
  flush();
  return pairs;
};

const changedColumns = (one, other) => {
  const marks = { left: [], right: [] };
  if (one.length > 400 || other.length > 400) return marks;
  const parts = window.Diff.diffWordsWithSpace(one, other, { timeout: 50 });
  if (!parts) return marks;
  let [left, right, kept] = [0, 0, 0];
  for (const part of parts) {
    if (!part.added && !part.removed) kept += part.value.trim().length;
    if (!part.added) {
      if (part.removed) marks.left.push([left, left + part.value.length]);
      left += part.value.length;
    }
    if (!part.removed) {
      if (part.added) marks.right.push([right, right + part.value.length]);
      right += part.value.length;
    }
  }
  return kept * 3 < Math.max(one.length, other.length) ? { left: [], right: [] } : marks; // another line altogether
};

const cell = (side, index, tokens, marks, isChanged) =>
  stark.h("div", { class: `side ${side}${index === null ? " empty" : isChanged ? " touched" : ""}` },
    stark.h("span", { class: "number", "data-number": index === null ? "" : index + 1 }),
    stark.h("span", { class: "sign", "aria-hidden": "true" }, isChanged && index !== null ? (side === "left" ? "−" : "+") : " "),
    stark.h("code", null, index === null ? "" : stark.lineOf(tokens[index], marks)));

stark.diffView = (beforeText, afterText, { left: leftName, right: rightName }) => {
  const [before, after] = [beforeText, afterText].map((text) => stark.visible(text).split("\n"));
  const pairs = pairLines(before, after);
  if (!pairs) return stark.h("p", { class: "notice" }, "The two sources differ too much to be compared line by line. See them under Source.");
  const [leftTokens, rightTokens] = [before, after].map((lines) => stark.colourLines(lines.join("\n"), "python"));
  const removed = pairs.filter((pair) => pair.kind === "changed" && pair.left !== null).length;
  const added = pairs.filter((pair) => pair.kind === "changed" && pair.right !== null).length;
  const row = (pair) => {
    const isChanged = pair.kind === "changed";
    const marks = isChanged && pair.left !== null && pair.right !== null ? changedColumns(before[pair.left], after[pair.right]) : { left: [], right: [] };
    return stark.h("div", { class: isChanged ? "pair changed-pair" : "pair" },
      cell("left", pair.left, leftTokens, marks.left, isChanged), cell("right", pair.right, rightTokens, marks.right, isChanged));
  };
  const near = pairs.map(() => false);
  pairs.forEach((pair, index) => {
    if (pair.kind === "changed") for (let at = Math.max(0, index - AROUND); at <= Math.min(pairs.length - 1, index + AROUND); at++) near[at] = true;
  });
  const rows = [];
  for (let at = 0; at < pairs.length; ) {
    let end = at;
    while (end < pairs.length && near[end] === near[at]) end++;
    const part = pairs.slice(at, end);
    rows.push(near[at] || part.length < SHORTEST_FOLD ? part.map(row) : fold(part, row));
    at = end;
  }
  return stark.h("div", { class: "sheet" },
    stark.h("div", { class: "sheet-head" }, stark.h("span", null, `${leftName} → ${rightName}`), stark.h("span", { class: "minus" }, `−${removed}`), stark.h("span", { class: "plus" }, `+${added}`), removed + added ? null : stark.h("span", { class: "dim" }, "the sources are identical")),
    stark.h("div", { class: "code diff", tabindex: 0, role: "region", "aria-label": `Changes from ${leftName} to ${rightName}` }, rows));
};

const fold = (part, row) => {
  const button = stark.h("button", { class: "fold", type: "button" }, `${part.length} equal lines`);
  button.addEventListener("click", () => button.replaceWith(...part.map(row)));
  return button;
};
