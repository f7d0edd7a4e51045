// The search field: every word must be in the name or the type of an operation, or in the name of a group. Where
// nothing has "conv2_grad", what has "conv2" and "grad" is found; letters alone are no words of such a name.

import { byId, element, replaceChildren } from "./dom.js";
import { formatCount } from "./format.js";

const MOST_SHOWN = 40;

function search(stage, query) {
  const found = matches(stage, query.toLowerCase().split(/\s+/));
  const words = query.toLowerCase().match(/[^\s_/]+/g) ?? [];
  return found.length || words.some((word) => /^[a-z]$/.test(word)) ? found : matches(stage, words);
}

/**
 * Items that match: those of the model before what is set apart, groups first, then those that have words as
 * parts of their names, as "conv2" is no part of "Conv2D", then shorter names first.
 */
function matches(stage, parts) {
  const words = parts.filter((word) => word);
  if (!words.length) return [];
  const { tree } = stage;
  const counts = stage.counts(false);
  const found = [];
  for (let item = 1; item < tree.size; item++) {
    if (!counts[item]) continue;
    const text = `${tree.names[item]} ${stage.op(item)}`.toLowerCase();
    if (words.every((word) => text.includes(word))) found.push(item);
  }
  const rank = (item) => {
    const name = tree.names[item].toLowerCase();
    const named = new Set([...name.split("/"), ...name.split(/[/_]/)]);
    const inside = words.filter((word) => !named.has(word)).length;
    return name.length + 200 * inside + (tree.isOperation(item) ? 1000 : 0) + (tree.role[item] ? 2000 : 0);
  };
  const ranks = new Map(found.map((item) => [item, rank(item)]));
  return found.sort((a, b) => ranks.get(a) - ranks.get(b));
}

export class SearchField {
  /** `choose(item)` is called with the item that the reader takes. */
  constructor(getStage, choose) {
    this.getStage = getStage;
    this.choose = choose;
    this.input = byId("query");
    this.list = byId("results");
    this.input.addEventListener("input", () => this.#update());
    this.input.addEventListener("keydown", (event) => this.#onKey(event));
    this.input.addEventListener("blur", () => this.#close());
    this.input.addEventListener("focus", () => this.#update());
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  #update() {
    const stage = this.getStage();
    this.found = search(stage, this.input.value);
    this.active = 0;
    const shown = this.found.slice(0, MOST_SHOWN);
    const rest = this.found.length - shown.length;
    const options = shown.map((item, i) => this.#option(stage, item, i));
    const nothing = this.input.value.trim() && !shown.length;
    replaceChildren(
      this.list,
      options,
      rest
        ? element("li", { class: "note", role: "presentation" }, `and ${rest.toLocaleString("en")} more`)
        : null,
      nothing
        ? element(
            "li",
            { class: "note", role: "presentation" },
            `Nothing in “${stage.name}” matches all words`,
          )
        : null,
    );
    this.#mark();
  }

  #option(stage, item, i) {
    const { tree } = stage;
    const what = tree.isOperation(item) ? stage.op(item) : formatCount(stage.counts(false)[item], "op");
    const option = element(
      "li",
      { role: "option", id: `result-${i}`, class: tree.isOperation(item) ? "" : "is-group" },
      element("span", { class: "name" }, tree.names[item]),
      element("span", { class: "what" }, what),
    );
    option.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the field keeps the focus until the choice is made
      this.#take(i);
    });
    return option;
  }

  #onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.found?.length) {
      const last = Math.min(this.found.length, MOST_SHOWN) - 1;
      this.active = Math.max(0, Math.min(last, this.active + step));
      this.#mark();
      event.preventDefault();
    } else if (event.key === "Enter") this.#take(this.active);
    else if (event.key === "Escape") byId("graph").focus();
  }

  #take(i) {
    if (!this.found?.length) return;
    this.choose(this.found[i]);
    byId("graph").focus();
  }

  #close() {
    replaceChildren(this.list);
    this.#mark();
  }

  #mark() {
    const options = this.list.querySelectorAll("[role=option]");
    options.forEach((option, i) => option.setAttribute("aria-selected", String(i === this.active)));
    options[this.active]?.scrollIntoView({ block: "nearest" });
    this.list.hidden = !this.list.children.length;
    this.input.setAttribute("aria-expanded", String(options.length > 0));
    this.input.setAttribute("aria-activedescendant", options.length ? `result-${this.active}` : "");
  }
}
