// What the graph trains, as a stage has it: its losses, the variables that the optimizer updates, and the gradient of
// each operation.

import { operations } from "./follow.js";

export class Training {
  #derivatives;

  /** `derivatives`: of an operation, the names of those that `gradients` made of it. */
  constructor({ losses, updates }, strings, derivatives) {
    this.#derivatives = derivatives;
    this.losses = losses.map((row) => strings[row]);
    this.updates = updates.map((rows) => rows.map((row) => strings[row]));
  }

  /** Whether it is known which operations compute the gradient of which. */
  get tellsGradients() {
    return this.#derivatives.size > 0;
  }

  /** {name, item} of each loss; the item is null in a step that runs only the gradients of it. */
  lossesIn(stage) {
    return this.losses.map((name) => ({ name, item: shownAs(stage, name) }));
  }

  /** {update, op, variable} for each variable that is updated. */
  updatesIn(stage) {
    const found = this.updates.map(([operation, op, variable]) => ({
      update: shownAs(stage, operation),
      op,
      variable: stage.tree.operations.get(variable),
    }));
    return found.filter(({ update, variable }) => update !== null && variable !== undefined);
  }

  /** The operations that compute the gradient of `item`, or of what it holds: those that read something. */
  gradientIn(stage, item) {
    const computed = [...operations(stage, item)].flatMap((each) => stage.computedBy(stage.tree.names[each]));
    const made = computed.flatMap((name) => this.#derivatives.get(name) ?? []);
    const shown = new Set(made.map((name) => shownAs(stage, name)));
    return [...shown].filter((each) => each !== null && [...stage.inputs.at(each)].length);
  }
}

/** The operation called `name`, or the compiled loop that it is in; null if the stage has neither. */
function shownAs(stage, name) {
  const names = [name, stage.graph.fused.get(name) ?? ""];
  return names.map((each) => stage.tree.operations.get(each) ?? -1).find((item) => stage.has(item)) ?? null;
}
