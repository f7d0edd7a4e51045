// The whole picture as a file: SVG, or PNG for where SVG is not taken.

import { element } from "./dom.js";
import { paint } from "./paint.js";
import { SvgContext } from "./svg.js";
import { Viewport } from "./viewport.js";

const MARGIN_SAVED = 24; // pixels around the picture
const MOST_PIXELS = 12000; // of a side of a PNG: browsers refuse canvases above 16384

/** The text of `scene` (see paint.js), all of its picture, as SVG. */
export function svgOf(scene) {
  const viewport = whole(scene.picture, 1);
  const [width, height] = [viewport.width, viewport.height].map((side) => side * devicePixelRatio);
  const context = new SvgContext(width, height);
  paint(context, { ...scene, viewport });
  return context.text();
}

export function saveSvg(scene, name) {
  save(new Blob([svgOf(scene)], { type: "image/svg+xml" }), `${name}.svg`);
}

export function savePng(scene, name) {
  const { width, height } = scene.picture;
  const side = (Math.max(width, height) + 2 * MARGIN_SAVED) * devicePixelRatio;
  const viewport = whole(scene.picture, Math.min(2 / devicePixelRatio, MOST_PIXELS / side));
  const canvas = element("canvas", {
    width: Math.ceil(viewport.width * devicePixelRatio),
    height: Math.ceil(viewport.height * devicePixelRatio),
  });
  paint(canvas.getContext("2d", { alpha: false }), { ...scene, viewport });
  canvas.toBlob((blob) => save(blob, `${name}.png`));
}

/** A viewport of exactly the picture. */
function whole({ width, height }, scale) {
  const viewport = new Viewport();
  viewport.width = (width + 2 * MARGIN_SAVED) * scale;
  viewport.height = (height + 2 * MARGIN_SAVED) * scale;
  viewport.scale = scale;
  viewport.x = viewport.y = MARGIN_SAVED * scale;
  return viewport;
}

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // the browser may still ask where to
}
