// Places the nodes of a tree: one column for each depth, one row for each leaf. Where there is little room, an outline:
// one row for each node, indented by its depth. Pure.
"use strict";

stark.COLUMN = 168;
stark.ROW = 36;
stark.INDENT = 26;

// Returns Map id -> {row, x, y, parent, children: [ids]} in landing order.
stark.layout = (rows, isOutline = false) => {
  const places = new Map();
  for (const row of rows) {
    const parent = row.parent === null ? null : places.get(row.parent);
    const place = { row, depth: parent ? parent.depth + 1 : 0, x: 0, y: 0, parent: row.parent, children: [] };
    place.x = place.depth * (isOutline ? stark.INDENT : stark.COLUMN);
    parent?.children.push(row.id);
    places.set(row.id, place);
  }
  let next = 0;
  const open = rows.filter((row) => row.parent === null).map((row) => row.id).reverse();
  while (open.length) {
    const place = places.get(open.pop());
    if (isOutline || !place.children.length) place.y = stark.ROW * next++;
    open.push(...[...place.children].reverse());
  }
  if (isOutline) return places;
  for (const row of [...rows].reverse()) { // children land after their parents
    const { children } = places.get(row.id);
    if (children.length) {
      places.get(row.id).y = (places.get(children[0]).y + places.get(children[children.length - 1]).y) / 2;
    }
  }
  return places;
};

// Returns the ids from the root to a node.
stark.pathTo = (places, id) => {
  const path = [];
  for (let at = id; at !== null && at !== undefined && places.has(at); at = places.get(at).parent) path.unshift(at);
  return path;
};
