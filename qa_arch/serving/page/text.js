// Offsets of the service count characters (code points); those of JavaScript's strings count UTF-16 units.

// A function from an offset in code points to one in units.
export function unitsOf(text) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return (offset) => units[Math.min(offset, units.length - 1)];
}

// Half of a surrogate pair, which no UTF-8 can hold, becomes the replacement character.
export const wellFormed = (text) => text.toWellFormed?.() ?? text.replace(/\p{Surrogate}/gu, "\ufffd");

// Neither certainty nor impossibility is claimed by rounding.
export function percent(share) {
  if (share > 0.99 && share < 1) return ">99%";
  return share > 0 && share < 0.01 ? "<1%" : `${(100 * share).toFixed(0)}%`;
}

// An element with attributes and children; texts stay texts.
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
