// Makes elements. Every text becomes a text node: nothing that a model or a compiler wrote is ever read as markup.
"use strict";

const stark = {};

// The libraries empty elements with innerHTML = "". Any other text is refused by the browser.
if (window.trustedTypes) {
  window.trustedTypes.createPolicy("default", { createHTML: (text) => (text === "" ? "" : null) });
}

// h("button", {class: "x", onclick: f}, "text", child, [more], null)
stark.h = (name, attributes, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || (value === false && !key.startsWith("aria-"))) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
};

stark.fill = (element, ...children) => {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return element;
};

// Control characters and those that reorder text stay visible, so that a source cannot look like another one.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
stark.visible = (text) =>
  String(text).replace(/\r\n?/g, "\n").replace(HIDDEN, (letter) => {
    const code = letter.codePointAt(0);
    return code < 32 ? String.fromCodePoint(0x2400 + code) : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });

stark.remember = (name, value) => {
  try {
    if (value === undefined) return window.localStorage.getItem(`stark-${name}`);
    window.localStorage.setItem(`stark-${name}`, value);
  } catch {} // a page from a file may have no storage
  return null;
};

stark.copyButton = (text) => {
  const button = stark.h("button", { class: "quiet", type: "button", title: "Copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
};
