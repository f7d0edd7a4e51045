// Which groups are open: at first as many as one view has room for, later those that the user opens.

import { arrange } from "./arrange.js";
import { ROOT } from "./graph.js";

const OPENED = ["scope", "function"]; // series and roles are closed at first
const MOST_TRIED = 200; // arrangements: of a large graph, each takes some milliseconds
const MOST_HELD = 60; // boxes of a group that may fit: arranging thousands would take seconds

/** The names of the groups of `stages` (of one tree) that are open at first; `fits(picture)` is the room. */
export function firstOpen(stages, fits) {
  const stage = stages.reduce((a, b) => (b.counts(false)[ROOT] > a.counts(false)[ROOT] ? b : a));
  const { tree } = stage;
  const counts = stage.counts(false);
  const childrenOf = (item) => tree.children[item].filter((child) => counts[child]);
  const open = new Set(childrenOf(ROOT).filter((item) => tree.kind[item] === "device"));
  const hasRoom = () => fits(arrange(stage, open, false));
  let level = [ROOT, ...open];
  for (let tried = 0; level.length; ) {
    const next = [];
    for (const together of alike(stage, level.flatMap(childrenOf), childrenOf)) {
      if (tried++ === MOST_TRIED) return namesOf(tree, open);
      for (const item of together) open.add(item);
      if (hasRoom()) next.push(...together);
      else for (const item of together) open.delete(item);
    }
    level = next;
  }
  return namesOf(tree, open);
}

/**
 * Lists of groups that open together: those of one name but for a number. Those with the most operations come
 * first: a network in one scope is what a reader looks for, and not what is around it.
 */
function alike(stage, items, childrenOf) {
  const { tree } = stage;
  const found = new Map();
  for (const item of items) {
    const held = OPENED.includes(tree.kind[item]) ? childrenOf(item) : [];
    if (held.length < 2 || held.length > MOST_HELD || isVariable(stage, item, held)) continue;
    const key = `${tree.parent[item]} ${tree.labels[item].replace(/_?\d+$/, "")} ${held.length}`;
    if (found.has(key)) found.get(key).push(item);
    else found.set(key, [item]);
  }
  const counts = stage.counts(false);
  const size = (group) => group.reduce((sum, item) => sum + counts[item], 0);
  return [...found.values()].sort((a, b) => size(b) - size(a));
}

/** Whether a group is a variable: its handle, and what reads it. */
function isVariable(stage, group, held) {
  const { tree } = stage;
  const isHandle = (item) =>
    tree.labels[item] === tree.labels[group] && /^resource\b/.test(stage.outputs(item)[0]?.text ?? "");
  return held.some(isHandle);
}

function namesOf(tree, items) {
  return new Set([...items].map((item) => tree.names[item]));
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
