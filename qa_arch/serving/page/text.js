// The service's offsets count code points; those of JavaScript strings count UTF-16 units.

// Function from an offset in code points to one in UTF-16 units.
export function unitsOf(text) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return (offset) => units[Math.min(offset, units.length - 1)];
}

// Replace lone surrogates, which UTF-8 cannot encode, with the replacement character.
export const wellFormed = (text) => text.toWellFormed?.() ?? text.replace(/\p{Surrogate}/gu, "\ufffd");

// Never round to 0% or 100%.
export function percent(share) {
  if (share > 0.99 && share < 1) return ">99%";
  return share > 0 && share < 0.01 ? "<1%" : `${(100 * share).toFixed(0)}%`;
}

// Create an element with attributes and children; strings become text nodes, never markup.
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
