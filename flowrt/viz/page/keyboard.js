// Keyboard equivalents of all pointer actions. Input fields keep their own keys. Each action has a key that all
// keyboards have: brackets need AltGr on many, and a slash, Shift.

import { REACHES } from "./follow.js";

export function listenToKeys(page) {
  document.addEventListener("keydown", (event) => {
    const isCommand = event.ctrlKey || event.metaKey || event.altKey;
    if (isCommand && !event.getModifierState("AltGraph")) return; // AltGr, for "[", is Ctrl and Alt to Windows
    if (event.target.closest("input, select")) return;
    const isOnButton = event.target.closest("button") !== null;
    const acts = isOnButton ? EVERYWHERE : { ...EVERYWHERE, ...ON_GRAPH };
    const act = acts[event.key] ?? acts[latin(event)];
    if (!act) return;
    event.preventDefault();
    act(page);
  });
}

/** The letter that is at the place of the key on a Latin keyboard, for others: "KeyF" of "а" is "f". */
function latin({ code }) {
  return /^Key[A-Z]$/.test(code) ? code[3].toLowerCase() : "";
}

const EVERYWHERE = {
  "/": (page) => page.search.focus(),
  s: (page) => page.search.focus(),
  p: (page) => page.showStage(page.state.stage - 1),
  n: (page) => page.showStage(page.state.stage + 1),
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
