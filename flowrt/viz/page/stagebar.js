// The bar of stages: one tab per stage, with the numbers of additions, removals and changes.

import { byId, element, replaceChildren } from "./dom.js";
import { formatCount } from "./format.js";

export class StageBar {
  constructor(graph, choose) {
    this.bar = byId("stages");
    this.tabs = graph.stages.map((stage) => this.#tab(stage, choose));
    const first = graph.stages.findIndex((stage) => stage.isPass);
    const caption = element("span", { class: "caption", "aria-hidden": "true" }, "optimised");
    replaceChildren(
      this.bar,
      this.tabs.flatMap((tab, i) => (i === first ? [caption, tab] : [tab])),
    );
  }

  #tab(stage, choose) {
    const { added, changed, removed } = stage.changes;
    const spoken = [`${stage.name}: ${formatCount(stage.counts(false)[0], "operation")}`];
    if (added) spoken.push(`${added} added`);
    if (removed) spoken.push(`${removed} removed`);
    if (changed) spoken.push(`${changed} changed`);
    const numbers = [
      ["added", "+", added],
      ["removed", "−", removed],
      ["changed", "~", changed],
    ];
    return element(
      "button",
      {
        role: "tab",
        class: `stage ${stage.isPass ? "is-pass" : ""}`,
        "aria-label": spoken.join(", "),
        title: stage.note,
        onclick: () => choose(stage.index),
      },
      element("span", { class: "name" }, stage.name.replaceAll("_", " ")),
      element(
        "span",
        { class: "numbers" },
        stage.previous
          ? numbers
              .filter(([, , count]) => count)
              .map(([kind, sign, count]) =>
                element("span", { class: kind }, `${sign}${count.toLocaleString("en")}`),
              )
          : stage.counts(false)[0].toLocaleString("en"),
      ),
    );
  }

  show(index) {
    this.tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
    });
    this.tabs[index].scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
