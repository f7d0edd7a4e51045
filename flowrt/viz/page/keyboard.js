// Keyboard equivalents of all pointer actions. Input fields keep their own keys.

import { REACHES } from "./follow.js";

export function listenToKeys(page) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select")) return;
    const isOnButton = event.target.closest("button") !== null;
    const act = (isOnButton ? EVERYWHERE : { ...EVERYWHERE, ...ON_GRAPH })[event.key];
    if (!act) return;
    event.preventDefault();
    act(page);
  });
}

const EVERYWHERE = {
  "/": (page) => page.search.focus(),
  "[": (page) => page.showStage(page.state.stage - 1),
  "]": (page) => page.showStage(page.state.stage + 1),
  "+": (page) => page.zoom(1.3),
  "=": (page) => page.zoom(1.3),
  "-": (page) => page.zoom(1 / 1.3),
  0: (page) => page.fit(),
  f: (page) => followFurther(page),
  Escape: (page) => page.clear(),
};

const ON_GRAPH = {
  Enter: (page) => page.toggleSelected(),
  " ": (page) => page.toggleSelected(),
  ArrowDown: (page) => page.step("down"),
  ArrowUp: (page) => page.step("up"),
  ArrowLeft: (page) => page.step("left"),
  ArrowRight: (page) => page.step("right"),
};

function followFurther({ state }) {
  const reaches = Object.keys(REACHES);
  const next = reaches[(reaches.indexOf(state.reach) + 1) % reaches.length];
  state.change({ reach: next, output: null });
}

// --- from one box to another: along the wires, or to its siblings

/** The item of the box in a direction, "up", "down", "left" or "right"; null if there is none. */
export function boxBeside(picture, wires, item, direction) {
  const box = picture.boxes.get(item);
  if (!box) return picture.order[0]?.item ?? null;
  const candidates =
    direction === "up" || direction === "down"
      ? alongWires(wires, item, direction)
      : inRow(picture, box, direction);
  const boxes = candidates
    .map((candidate) => picture.boxes.get(candidate))
    .filter((candidate) => candidate);
  const distance = (other) =>
    Math.hypot(middle(other)[0] - middle(box)[0], middle(other)[1] - middle(box)[1]);
  boxes.sort((a, b) => distance(a) - distance(b));
  return boxes[0]?.item ?? null;
}

function alongWires(wires, item, direction) {
  const [here, there] = direction === "up" ? ["to", "from"] : ["from", "to"];
  return wires.filter((wire) => wire[here] === item).map((wire) => wire[there]);
}

function inRow(picture, box, direction) {
  const { parent } = picture.stage.tree;
  const isBeyond = direction === "left" ? (other) => other.x < box.x : (other) => other.x > box.x;
  return picture.order
    .filter((other) => parent[other.item] === parent[box.item] && isBeyond(other))
    .map((other) => other.item);
}

function middle({ x, y, width, height }) {
  return [x + width / 2, y + height / 2];
}
