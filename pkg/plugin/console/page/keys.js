// Keyboard: one element of a group is in the order of Tab, arrow keys move in the group.

// rove makes the elements that match selector in root a group. With columns, up and down go to the
// nearest element above and below.
export function rove(root, selector, columns) {
  const all = () => [...root.querySelectorAll(selector)];
  root.addEventListener('focusin', (event) => {
    const target = event.target.closest(selector);
    if (target) choose(root, selector, target);
  });
  root.addEventListener('keydown', (event) => {
    const current = event.target.closest?.(selector);
    if (!current || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = move(all(), current, event.key, columns);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  });
}

function choose(root, selector, target) {
  for (const other of root.querySelectorAll(selector + '[tabindex="0"]')) {
    if (other !== target) other.tabIndex = -1;
  }
  target.tabIndex = 0;
}

// enter makes sure that one element of the group can be reached with Tab.
export function enter(root, selector) {
  const current = root.querySelector(selector + '[tabindex="0"]') ?? root.querySelector(selector);
  if (current) current.tabIndex = 0;
}

function move(all, current, key, columns) {
  const i = all.indexOf(current);
  switch (key) {
    case 'Home': return all[0];
    case 'End': return all.at(-1);
    case 'ArrowRight': return columns === false ? undefined : all[i + 1];
    case 'ArrowLeft': return columns === false ? undefined : all[i - 1];
    case 'ArrowDown': return columns ? nearest(all, current, 1) : columns === false ? all[i + 1] : undefined;
    case 'ArrowUp': return columns ? nearest(all, current, -1) : columns === false ? all[i - 1] : undefined;
  }
  return undefined;
}

function nearest(all, current, direction) {
  const from = current.getBoundingClientRect();
  let best, least = Infinity;
  for (const other of all) {
    const to = other.getBoundingClientRect();
    const down = (to.top - from.top) * direction;
    if (down < 4) continue;
    const distance = down + 3 * Math.abs(to.left - from.left);
    if (distance < least) [best, least] = [other, distance];
  }
  return best;
}
