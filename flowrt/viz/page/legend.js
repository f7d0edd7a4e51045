// The legend of colours and lines. A click on a colour isolates it.

import { byId, element, refill, replaceChildren } from "./dom.js";
import { MODES, modeShown, modesOf } from "./colour.js";

export class Legend {
  constructor(graph, state) {
    this.state = state;
    this.select = byId("colour");
    replaceChildren(
      this.select,
      modesOf(graph).map((mode) => element("option", { value: mode }, modeLabel(mode, graph))),
    );
    this.select.addEventListener("change", () =>
      state.change({ colour: this.select.value, onlyClass: null }),
    );
    this.ghosts = byId("ghosts");
    this.ghosts.addEventListener("change", () => state.change({ ghosts: this.ghosts.checked }));
  }

  show(colours, stage) {
    const { state } = this;
    const { changes, tree } = stage;
    this.select.value = modeShown(state, stage);
    this.ghosts.checked = state.ghosts;
    this.ghosts.closest("label").hidden = !changes.removed;
    byId("apart").hidden = !tree.kind.includes("role");
    byId("gradients-told").hidden = !stage.graph.training.tellsGradients;
    byId("marks").hidden = !(changes.added + changes.removed + changes.changed);
    refill(
      byId("legend"),
      colours.legend.map((row) => this.#row(row, colours.isAmount)),
    );
  }

  #row({ class: kind, label, detail }, isAmount) {
    const { state } = this;
    if (kind === null) return element("li", { class: "total" }, label);
    const swatch = element("span", {
      class: `swatch ${isAmount ? "amount" : "category"}-${kind}`,
      "aria-hidden": "true",
    });
    const isOnly = state.onlyClass === kind;
    const button = element(
      "button",
      {
        "aria-pressed": String(isOnly),
        title: isOnly ? "Show all" : `Show only: ${label}`,
        onclick: () => state.change({ onlyClass: isOnly ? null : kind }),
      },
      swatch,
      element("span", { class: "name" }, label),
      element("span", { class: "what" }, detail),
    );
    return element("li", {}, button);
  }
}

function modeLabel(mode, graph) {
  return mode === "time" && graph.secondsAre
    ? `${MODES[mode].label} (${graph.secondsAre})`
    : MODES[mode].label;
}
