// Asks the server for data, or reads them from this page if it holds them itself.
"use strict";

stark.embedded = () => {
  const held = document.getElementById("stark-data");
  return held ? JSON.parse(held.textContent) : null;
};

class Failed extends Error {
  constructor(message, hint) {
    super(message);
    this.hint = hint;
  }
}

const ask = async (path, parameters) => {
  let answer;
  try {
    answer = await fetch(`/api/${path}?${new URLSearchParams(parameters)}`);
  } catch {
    throw new Failed("The server does not answer.", "Start it again: stark view DIR");
  }
  const body = answer.headers.get("content-type")?.includes("json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Failed(body.error, body.hint);
  return body;
};

stark.served = {
  isLive: true,
  index: () => ask("index", {}),
  run: (store, run, known) => ask("run", { store, run, known }),
  node: (store, run, node) => ask("node", { store, run, node }),
  // Follows a store, or all of them. A hidden page follows nothing: browsers share few connections among all tabs.
  follow: (store, onChange, onState) => {
    let events = null;
    const open = () => {
      if (events || document.hidden) return;
      events = new EventSource(`/api/events${store === null ? "" : `?${new URLSearchParams({ store })}`}`);
      events.addEventListener("changed", onChange);
      events.onopen = () => onState(true);
      events.onerror = () => onState(false);
    };
    const close = () => {
      events?.close();
      events = null;
    };
    const turn = () => (document.hidden ? close() : open());
    document.addEventListener("visibilitychange", turn);
    open();
    return () => {
      document.removeEventListener("visibilitychange", turn);
      close();
    };
  },
};

stark.heldBy = (data) => ({
  isLive: false,
  index: async () => data,
  run: async (_, run) => data.documents[run],
  node: async (_, run, node) => {
    const found = data.nodes[run]?.[node];
    if (!found) throw new Failed("This file holds only the nodes on the way to the best one.", "See all with: stark view DIR");
    return found;
  },
  follow: () => () => {},
});
