// Texts for times, sizes and numbers.

const minute = 60e3, hour = 60 * minute, day = 24 * hour;

// span returns a duration, such as 3h 20m.
export function span(ms) {
  const s = Math.max(0, ms);
  if (s < minute) return Math.floor(s / 1e3) + 's';
  if (s < hour) return Math.floor(s / minute) + 'm';
  if (s < day) return two(s, hour, 'h', minute, 'm');
  return two(s, day, 'd', hour, 'h');
}

function two(ms, large, l, small, s) {
  const rest = Math.floor((ms % large) / small);
  return Math.floor(ms / large) + l + (rest ? ' ' + rest + s : '');
}

export const age = (time, now) => (time ? span(now - Date.parse(time)) : '');

// floorText states when the floor of a lease is.
export function floorText(floor, now) {
  if (!floor) return '';
  const left = Date.parse(floor) - now;
  return left > 0 ? 'floor in ' + span(left) : 'floor passed';
}

const pad = (n) => String(n).padStart(2, '0');

// clock returns a time of the day, in UTC.
export function clock(time) {
  const t = new Date(time);
  return pad(t.getUTCHours()) + ':' + pad(t.getUTCMinutes());
}

const months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

export const date = (time) => new Date(time).getUTCDate() + ' ' + months[new Date(time).getUTCMonth()];
export const moment = (time) => (time ? date(time) + ' ' + clock(time) : '');

export function bytes(n) {
  const value = Number(n);
  if (!value) return '';
  const i = Math.min(4, Math.floor(Math.log2(value) / 10));
  return (value / 2 ** (10 * i)).toFixed(i > 2 && value / 2 ** (10 * i) < 10 ? 1 : 0) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][i];
}

export const plural = (n, one, many = one + 's') => n + ' ' + (n === 1 ? one : many);
export const collate = new Intl.Collator('en', { numeric: true }).compare;
