// The reader's place in the address: #stage=placed&op=conv1/Conv2D&colour=device&reach=up opens there again.

import { MODES } from "./colour.js";
import { REACHES } from "./follow.js";

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
  const values = { stage: graph.stages[state.stage].name, colour: state.colour };
  if (state.selected) Object.assign(values, { op: state.selected, reach: state.reach });
  history.replaceState(null, "", `#${new URLSearchParams(values)}`);
}
