// The state of the page, with its listeners. Everything on the screen is derived from it.
//
//   stage     number of the stage           selected  id of an operation or group, or ""
//   colour    key of MODES, null: by stage  reach     key of REACHES; output: number of a tensor, or null
//   ghosts    whether removed ones show     onlyClass class of the legend that alone has colour, or null
//   open      for each tree the names of its open groups

import { MODES } from "./colour.js";
import { REACHES } from "./follow.js";

export class State {
  #listeners = [];

  constructor(values) {
    Object.assign(this, values);
  }

  /** `react(changed)` is called after each change with the names of what was changed, as a set. */
  onChange(react) {
    this.#listeners.push(react);
  }

  change(values) {
    const changed = new Set(Object.keys(values).filter((name) => this[name] !== values[name]));
    if (!changed.size) return;
    Object.assign(this, values);
    for (const react of this.#listeners) react(changed);
  }
}

/** The state in the address: #stage=placed&op=conv1/Conv2D&colour=device&reach=up opens there again. */
export function readAddress(graph) {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = {};
  const stage = graph.stages.find((candidate) => candidate.name === given.get("stage"));
  if (stage) found.stage = stage.index;
  if (given.get("op")) found.selected = given.get("op");
  if (Object.hasOwn(MODES, given.get("colour"))) found.colour = given.get("colour");
  if (Object.hasOwn(REACHES, given.get("reach"))) found.reach = given.get("reach");
  return found;
}

export function writeAddress(graph, state) {
  if (location.protocol === "about:") return; // a notebook's frame has no address
  const values = { stage: graph.stages[state.stage].name };
  if (state.colour !== null) values.colour = state.colour;
  if (state.selected) Object.assign(values, { op: state.selected, reach: state.reach });
  history.replaceState(null, "", `#${new URLSearchParams(values)}`);
}
