// Elements of the page. Texts are always set as text: a name is never parsed as markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, String(value));
  }
  made.append(...present(children));
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

export function replaceChildren(parent, ...children) {
  parent.replaceChildren(...present(children));
}

/** Like replaceChildren, but keeps the scroll position and the focus, by the button's index. */
export function refill(parent, ...children) {
  const buttons = () => [...parent.querySelectorAll("button")];
  const focused = buttons().indexOf(document.activeElement);
  const { scrollTop } = parent;
  replaceChildren(parent, ...children);
  parent.scrollTop = scrollTop;
  buttons()[focused]?.focus();
}

/** A name that may wrap after its slashes. */
export function breakable(name) {
  return name.split("/").flatMap((part, i) => (i ? ["/", element("wbr"), part] : [part]));
}

function present(children) {
  return children.flat(Infinity).filter((child) => child !== null);
}
