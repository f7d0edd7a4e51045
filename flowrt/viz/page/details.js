// The panel next to the graph: all facts about the selected item or, without a selection, the stage.

import { MODES, modeShown } from "./colour.js";
import { breakable, byId, element, refill, replaceChildren } from "./dom.js";
import { follow, operations, REACHES } from "./follow.js";
import { formatBytes, formatCount, formatDevice, formatSeconds } from "./format.js";
import { ROOT } from "./graph.js";

const MOST_LISTED = 60;
const MOST_AT_FIRST = 12; // variables that a stage lists, and operations of a gradient: other facts are below them
const NONE = { text: "", bytes: -1 };
const LARGEST = 10; // operations in the list of those with most time or memory

export class Details {
  #changes = new Map(); // of each stage: of 10,000 operations, finding what changed takes a while

  /** `go(item)` shows and selects an item; `toggle(item)` opens or closes a group. */
  constructor(state, { go, toggle }) {
    Object.assign(this, { state, go, toggle });
    this.panel = byId("details");
  }

  show(stage, item, isOpen) {
    const isSame = this.stage === stage && this.item === item;
    Object.assign(this, { stage, item, tree: stage.tree });
    const content = this.#content(isOpen);
    if (isSame) return refill(this.panel, content);
    const hadFocus = this.panel.contains(document.activeElement);
    replaceChildren(this.panel, content);
    this.panel.scrollTop = 0;
    if (hadFocus) this.panel.focus();
  }

  #content(isOpen) {
    const { item } = this;
    if (item === null) return this.#stage();
    return this.tree.isOperation(item) ? this.#operation(item) : this.#group(item, isOpen);
  }

  // --- the stage

  #stage() {
    const { stage } = this;
    const marks = [...stage.changes.marks];
    const updates = this.#updates(ROOT, MOST_AT_FIRST);
    const itemsOf = (kind) => marks.filter(([, mark]) => mark === kind).map(([item]) => item);
    return [
      element("h2", {}, stage.name.replaceAll("_", " ")),
      element("p", { class: "note" }, stage.note),
      facts([
        ["Operations", stage.counts(false)[0].toLocaleString("en")],
        ["Edges", stage.edges.length.toLocaleString("en")],
      ]),
      stage.previous && !marks.length ? element("p", { class: "note" }, "Nothing changed.") : null,
      updates.length ? this.#losses() : null,
      this.#largestTensor(),
      updates,
      this.#largest(),
      this.#list("Added", itemsOf("added"), "added"),
      this.#list("Removed", itemsOf("removed"), "removed"),
      this.#changed(itemsOf("changed")),
      keys(),
    ];
  }

  #losses() {
    const losses = this.stage.losses.map((loss) => element("li", {}, this.#loss(loss)));
    const title = losses.length > 1 ? `Losses ${losses.length}` : "Loss";
    return losses.length ? section(title, element("ul", { class: "plain" }, losses)) : null;
  }

  #loss({ name, item }) {
    if (item === null) return [breakable(name), note("This step runs only its gradients.")];
    if (this.tree.names[item] !== name) return [this.#link(item, name), note(`in ${this.tree.names[item]}`)];
    return this.#withOutput(item);
  }

  /** The operation with the largest output, as far as sizes are known, and how many have one as large. */
  #largestTensor() {
    const { stage } = this;
    const outputs = [...operations(stage, ROOT)].map((item) => [item, stage.outputs(item)]);
    const sizes = outputs.map(([item, of]) => [item, largestOf(of).bytes]);
    const most = sizes.reduce((found, [, bytes]) => Math.max(found, bytes), 0);
    const largest = sizes.filter(([, bytes]) => bytes === most).map(([item]) => item);
    if (most === 0) return null;
    const areKnown = outputs.every(([, of]) => of.every(({ text }) => !text.includes("?")));
    const rest = largest.length - 1;
    const rows = [this.#withOutput(largest[0]), rest ? note(`and ${rest.toLocaleString("en")} as large`) : null];
    return section(
      areKnown ? "Largest tensor" : "Largest tensor of a known size",
      element("ul", { class: "plain" }, element("li", {}, rows)),
    );
  }

  /** An operation, with the shape and size of its largest output. */
  #withOutput(item) {
    const { text, bytes } = largestOf(this.stage.outputs(item));
    const size = bytes > 0 ? `, ${formatBytes(bytes)}` : "";
    return [this.#link(item), element("span", { class: "what" }, `${text}${size}`)];
  }

  /** The variables that a group updates, by the operation that does. */
  #updates(group, most = MOST_LISTED) {
    const byOp = new Map();
    for (const { op, variable } of this.stage.updates(group)) {
      if (byOp.has(op)) byOp.get(op).push(variable);
      else byOp.set(op, [variable]);
    }
    return [...byOp].map(([op, variables]) =>
      section(
        `${op} updates ${formatCount(variables.length, "variable")}`,
        this.#items(variables, "", most),
        "as-named",
      ),
    );
  }

  /** The operations of most time or memory, where the colours show that. */
  #largest() {
    const { stage } = this;
    const { label, amount, format } = MODES[modeShown(this.state, stage)];
    if (!amount) return null;
    const amounts = [...operations(stage, ROOT)].map((item) => [item, amount(stage, item)]);
    const ranked = amounts.sort((a, b) => b[1] - a[1]).slice(0, LARGEST);
    const rows = ranked.map(([item, value]) =>
      element("li", {}, this.#link(item), element("span", { class: "what" }, format(value))),
    );
    return section(`${label}: most`, element("ul", { class: "plain" }, rows));
  }

  /** The changed operations by what changed, "device", with what it was and is. */
  #changed(items) {
    if (!this.#changes.has(this.stage)) this.#changes.set(this.stage, byWhatChanged(this.stage, items));
    return this.#changes.get(this.stage).map(([what, changed]) => {
      const shown = changed.slice(0, MOST_LISTED).map(([item, rows]) => {
        const note = rows.length === 1 ? onlyDifferent(rows[0]).map(shortened).join(" → ") : "";
        const whole = rows.map(({ before, after }) => `${before} → ${after}`).join("\n");
        return element("li", {}, this.#link(item), element("span", { class: "what", title: whole }, breakable(note)));
      });
      const title = `Changed: ${what} ${changed.length.toLocaleString("en")}`;
      return section(title, element("ul", { class: "plain changes" }, withRest(shown, changed.length)), "changed");
    });
  }

  // --- a group

  #group(item, isOpen) {
    const { stage, tree } = this;
    const types = new Map();
    let bytes = 0;
    for (const op of operations(stage, item)) {
      types.set(stage.op(op), (types.get(stage.op(op)) ?? 0) + 1);
      bytes += stage.bytes(op);
    }
    const ranked = [...types].sort((a, b) => b[1] - a[1]);
    return [
      this.#head(item, tree.kind[item]),
      element("button", { class: "action", onclick: () => this.toggle(item) }, isOpen ? "Close" : "Open"),
      facts([
        ["Operations", stage.counts(false)[item].toLocaleString("en")],
        ["Outputs", bytes ? formatBytes(bytes) : ""],
      ]),
      tree.kind[item] === "role" ? this.#updates(item) : null,
      this.#reaches(item),
      this.#gradient(item),
      section(
        "Types",
        element(
          "ul",
          { class: "plain" },
          ranked
            .slice(0, 12)
            .map(([type, count]) =>
              element(
                "li",
                {},
                element("span", {}, type),
                element("span", { class: "what" }, String(count)),
              ),
            ),
        ),
      ),
      this.#borders(item),
    ];
  }

  /** Operations outside that produce its inputs or consume its outputs. */
  #borders(item) {
    const { stage, tree } = this;
    const { source, target } = tree.edges;
    const inside = new Set(operations(stage, item));
    const { edges } = follow(stage, item, "near", null);
    const from = new Set();
    const to = new Set();
    for (const edge of edges) {
      if (!inside.has(source[edge])) from.add(source[edge]);
      if (!inside.has(target[edge])) to.add(target[edge]);
    }
    return [this.#list("Inputs", [...from]), this.#list("Consumers", [...to])];
  }

  // --- an operation

  #operation(item) {
    const { stage, tree } = this;
    const name = tree.names[item];
    const mark = stage.changes.marks.get(item);
    if (!stage.has(item))
      return [
        this.#head(item, "", mark),
        element("p", { class: "note" }, `Not present in stage “${stage.name}”.`),
        this.#readersNote(item),
      ];
    const seconds = stage.graph.seconds.get(name);
    const code = stage.graph.code(name);
    return [
      this.#head(item, stage.op(item), mark),
      facts([
        ["Device", formatDevice(stage.device(item)) || "not placed yet"],
        ["Source", stage.source(item)],
        [
          "Time",
          seconds === undefined
            ? ""
            : `${formatSeconds(seconds)}${stage.graph.secondsAre ? ` (${stage.graph.secondsAre})` : ""}`,
        ],
        ["Fused in", stage.graph.fused.get(name) ?? ""],
      ]),
      this.#reaches(item),
      mark === "changed" ? this.#difference(item) : null,
      this.#outputs(item),
      this.#inputs(item),
      this.#gradient(item),
      section("Attributes", facts(stage.attrs(item))),
      code ? section("Program", element("pre", { tabindex: "0" }, code)) : null,
    ];
  }

  #head(item, kind, mark) {
    const { tree } = this;
    const path = [...tree.around(item)].reverse();
    return element(
      "div",
      { class: "head" },
      element(
        "nav",
        { class: "path", "aria-label": "Enclosing groups" },
        path.map((group) => [this.#link(group, tree.labels[group]), " / "]),
      ),
      element("h2", {}, tree.labels[item]),
      element(
        "p",
        { class: "kinds" },
        kind ? element("span", { class: "chip" }, kind) : null,
        mark ? element("span", { class: `chip ${mark}` }, mark) : null,
      ),
      element("p", { class: "full" }, breakable(tree.names[item])),
    );
  }

  #reaches(item) {
    const { state } = this;
    const buttons = Object.entries(REACHES).map(([reach, label]) =>
      element(
        "button",
        {
          "aria-pressed": String(state.reach === reach && state.output === null),
          onclick: () => state.change({ reach, output: null }),
        },
        label,
      ),
    );
    const { items } = follow(this.stage, item, state.reach, state.output);
    const choice = element(
      "div",
      { class: "choice", role: "group", "aria-label": "How far to follow" },
      buttons,
    );
    return section("Follow", [
      choice,
      element("p", { class: "note" }, formatCount(items.size, "operation")),
    ]);
  }

  #outputs(item) {
    const { stage } = this;
    const { target, index } = this.tree.edges;
    const edges = [...stage.readers.at(item)];
    const outputs = stage.outputs(item).map(({ text, bytes }, i) => {
      const readers = edges
        .filter((edge) => index[edge] === i && stage.kindOf(edge) !== "control")
        .map((edge) => target[edge]);
      const isFollowed = this.state.output === i;
      return element(
        "li",
        { class: "tensor" },
        element(
          "button",
          {
            class: "follow",
            "aria-pressed": String(isFollowed),
            title: "Follow this tensor",
            onclick: () => this.state.change({ output: isFollowed ? null : i }),
          },
          element("span", {}, `:${i}`),
          element("code", {}, text),
          element("span", { class: "what" }, bytes < 0 ? "" : formatBytes(bytes)),
        ),
        this.#items(readers, "no consumers"),
      );
    });
    const waiting = edges.filter((edge) => stage.kindOf(edge) === "control").map((edge) => target[edge]);
    const others = edges
      .filter((edge) => stage.kindOf(edge) !== "control" && index[edge] < 0 && !stage.outputs(item).length)
      .map((edge) => target[edge]);
    return [
      outputs.length ? section("Outputs", element("ul", { class: "tensors" }, outputs)) : null,
      this.#list("Sends to", others),
      this.#list("Must run before", waiting),
    ];
  }

  #inputs(item) {
    const { stage } = this;
    const { source } = this.tree.edges;
    const controls = [...stage.inputs.at(item)].filter((edge) => stage.kindOf(edge) === "control");
    const inputs = this.#tensorsRead(item);
    return [
      inputs.length ? section("Inputs", element("ul", { class: "plain" }, inputs)) : null,
      this.#list(
        "Must run after",
        controls.map((edge) => source[edge]),
      ),
    ];
  }

  /** A row for each tensor that an operation reads: its producer and its shape. */
  #tensorsRead(item) {
    const { stage } = this;
    const { source } = this.tree.edges;
    return [...stage.inputs.at(item)]
      .filter((edge) => stage.kindOf(edge) !== "control")
      .map((edge) =>
        element(
          "li",
          {},
          this.#link(source[edge]),
          element("code", { class: "what" }, stage.carried(edge)?.text ?? ""),
        ),
      );
  }

  /** The operations of the gradient of an item, each with what it reads. */
  #gradient(item) {
    const made = this.stage.gradient(item);
    if (!made.length) return null;
    const rows = made.slice(0, MOST_AT_FIRST).map((each) =>
      element(
        "li",
        { class: "tensor" },
        [this.#link(each), note("reads")],
        element("ul", { class: "plain" }, atFirst(this.#tensorsRead(each))),
      ),
    );
    return section(
      `Gradient: ${formatCount(made.length, "operation")}`,
      element("ul", { class: "tensors" }, withRest(rows, made.length)),
    );
  }

  /** What this stage changed, before and after. */
  #difference(item) {
    const lines = differences(this.stage, item).map(({ name, before, after }) =>
      element(
        "li",
        {},
        element("span", { class: "label" }, name),
        element("del", {}, before),
        element("ins", {}, after),
      ),
    );
    return section("Changed by this stage", element("ul", { class: "difference" }, lines));
  }

  #readersNote(item) {
    const before = this.stage.previous;
    if (!before?.has(item)) return null;
    return facts([
      ["Was", before.op(item)],
      ["Device", before.device(item)],
      [
        "Outputs",
        before
          .outputs(item)
          .map(({ text }) => text)
          .join(", "),
      ],
      ["Source", before.source(item)],
    ]);
  }

  // --- lists of links

  #list(title, items, mark = "") {
    if (!items.length) return null;
    return section(
      `${title} ${items.length > 1 ? items.length.toLocaleString("en") : ""}`,
      this.#items(items),
      mark,
    );
  }

  #items(items, nothing = "", most = MOST_LISTED) {
    if (!items.length) return element("p", { class: "note" }, nothing);
    const shown = items.slice(0, most).map((item) => element("li", {}, this.#link(item)));
    return element("ul", { class: "plain" }, withRest(shown, items.length));
  }

  #link(item, text = this.tree.names[item]) {
    return element(
      "button",
      { class: "link", title: this.tree.names[item], onclick: () => this.go(item) },
      breakable(text),
    );
  }
}

/** The rows that are shown of `count`, and how many more there are. */
function withRest(shown, count) {
  const rest = count - shown.length;
  return [shown, rest > 0 ? element("li", { class: "note" }, `and ${rest.toLocaleString("en")} more`) : null];
}

function atFirst(rows) {
  return withRest(rows.slice(0, MOST_AT_FIRST), rows.length);
}

/** {text, bytes} of the output with most bytes; bytes are -1 for one of unknown size, and without outputs. */
function largestOf(outputs) {
  return outputs.reduce((largest, output) => (output.bytes > largest.bytes ? output : largest), outputs[0] ?? NONE);
}

/** [what, [[item, differences], ...]] of each combination of facts that changed, the most frequent first. */
function byWhatChanged(stage, items) {
  const found = new Map();
  for (const item of items) {
    const rows = differences(stage, item);
    const what = rows.map(({ name }) => name).join(", ");
    if (found.has(what)) found.get(what).push([item, rows]);
    else found.set(what, [[item, rows]]);
  }
  return [...found].sort((a, b) => b[1].length - a[1].length);
}

/** {name, before, after} of each fact of an operation that its stage changed. */
function differences(stage, item) {
  const [before, after] = [described(stage.previous, item), described(stage, item)];
  const names = Object.keys({ ...after, ...before }).filter((name) => before[name] !== after[name]);
  return names.map((name) => ({ name, before: before[name] || "—", after: after[name] || "—" }));
}

const BETWEEN_NAMES = /, (?![^[\]]*\])/; // a comma in the brackets of a shape is none

/** [before, after] of a difference, without the names that lists of names have in common. */
function onlyDifferent({ before, after }) {
  const [was, is] = [before, after].map((text) => text.split(BETWEEN_NAMES));
  const without = (names, others) => names.filter((name) => !others.includes(name)).join(", ") || "—";
  return [without(was, is), without(is, was)];
}

const SHORT = 60; // characters of a value in a list: two lines of the panel

function shortened(text) {
  return text.length > SHORT ? `…${text.slice(1 - SHORT)}` : text;
}

function described(stage, item) {
  const { source } = stage.tree.edges;
  const names = (kinds) =>
    [...stage.inputs.at(item)]
      .filter((edge) => kinds.includes(stage.kindOf(edge)))
      .map((edge) => stage.tree.names[source[edge]])
      .sort()
      .join(", ");
  return {
    type: stage.op(item),
    device: formatDevice(stage.device(item)),
    outputs: stage
      .outputs(item)
      .map(({ text }) => text)
      .join(", "),
    inputs: names(["data", "transfer"]),
    "runs after": names(["control"]),
    ...Object.fromEntries(stage.attrs(item)),
  };
}

function section(title, content, mark = "") {
  return content === null ? null : element("section", { class: mark }, element("h3", {}, title), content);
}

function note(text) {
  return element("span", { class: "note" }, text);
}

function facts(pairs) {
  const rows = pairs.filter(([, value]) => value !== "");
  return rows.length
    ? element(
        "dl",
        {},
        rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, breakable(value))]),
      )
    : null;
}

const KEYS = [
  ["S", "search (also /)"],
  ["P N", "previous stage, next stage (also [ ])"],
  ["↑ ↓", "inputs, consumers"],
  ["← →", "siblings"],
  ["Enter", "open, close"],
  ["F", "follow: near, up, down, both"],
  ["+ − 0", "zoom in, zoom out, show all"],
  ["Esc", "clear selection"],
];

function keys() {
  const rows = KEYS.map(([key, what]) => [
    element("dt", {}, element("kbd", {}, key)),
    element("dd", {}, what),
  ]);
  return section("Keys", element("dl", { class: "keys" }, rows));
}
