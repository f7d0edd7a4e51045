// Hovering over a curve shows a line at the nearest step and its values in the caption. The page is complete without
// this script.

"use strict";

const SVG = "http://www.w3.org/2000/svg";

function nearest(points, x) {
  let best = points[0];
  for (const point of points) {
    if (Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  }
  return best;
}

function follow(chart) {
  const lines = JSON.parse(chart.dataset.points).filter((line) => line.points.length);
  const caption = chart.parentElement.querySelector("figcaption span");
  if (!lines.length || !caption) return;
  const resting = caption.textContent;
  const cursor = document.createElementNS(SVG, "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", 8);
  cursor.setAttribute("y2", chart.viewBox.baseVal.height - 24);

  chart.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    const found = lines.map((line) => nearest(line.points, at.x));
    cursor.setAttribute("x1", found[0][0]);
    cursor.setAttribute("x2", found[0][0]);
    chart.append(cursor);
    caption.textContent = `step ${found[0][2]}: ${found.map((point) => point[3]).join(", ")}`;
  });
  chart.addEventListener("pointerleave", () => {
    cursor.remove();
    caption.textContent = resting;
  });
}

document.querySelectorAll("[data-points]").forEach(follow);
globalThis.flowrtPage = { curves: document.querySelectorAll("[data-points]").length }; // it is ready
