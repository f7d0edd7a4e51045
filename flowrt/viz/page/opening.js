// Which groups are open: at first as many as fit one view, later those that the user opens.

import { ROOT } from "./graph.js";

const FIRST_SIGHT = 40; // boxes

/** The names of the groups of `stages` (of one tree) that are open at first: all of a level or none. */
export function firstOpen(stages) {
  const [{ tree }] = stages;
  const counts = stages.map((stage) => stage.counts(false));
  const childrenOf = (item) => tree.children[item].filter((child) => counts.some((count) => count[child]));
  const open = new Set();
  let level = childrenOf(ROOT);
  let shown = level.length;
  while (level.length) {
    const groups = level.filter((item) => !tree.isOperation(item) && tree.kind[item] !== "series");
    const children = groups.flatMap(childrenOf);
    const isDevices = groups.every((item) => tree.kind[item] === "device");
    if (!isDevices && shown + children.length > FIRST_SIGHT) break;
    for (const item of groups) open.add(tree.names[item]);
    shown += children.length;
    level = children;
  }
  return open;
}

/** `open` with all groups around an item. */
export function openedTo(tree, open, item) {
  return new Set([...open, ...[...tree.around(item)].map((group) => tree.names[group])]);
}

/** `open` with one more level below the group, or without the group. */
export function toggled(tree, open, item) {
  const after = new Set(open);
  if (!after.delete(tree.names[item])) after.add(tree.names[item]);
  return after;
}

export function allOpen(tree) {
  return new Set(tree.groups.keys());
}
