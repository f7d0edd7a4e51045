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
