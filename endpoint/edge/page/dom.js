// Elements of the page. Text is only ever set as text, so that no answer becomes markup.

export const byId = (id) => document.getElementById(id);

/** Return a new element with these attributes, and these strings and elements in it. */
export function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...content);
  return made;
}
