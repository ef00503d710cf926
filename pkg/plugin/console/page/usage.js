// Usage: leased Macs now and over time, and what each tenant is billed for.
import { el, replace, svg, table } from './dom.js';
import { collate, date, plural } from './format.js';
import { remote } from './remote.js';
import { loaded, notices, now, store } from './store.js';

const windows = { today: 'Today', '7d': '7 days', '30d': '30 days', month: 'This month' };

let root, report, redraw, chosen = 'month';

export function start(view, _select, schedule) {
  [root, redraw] = [view, schedule];
  report = remote('usage', () => !root.hidden, schedule);
}

export const open = () => report.open();

export function render() {
  const { data, failure } = report;
  const classes = [...store.items.classes.values()].sort((a, b) => collate(a.name, b.name));
  const hidden = notices('classes');
  replace(root, JSON.stringify([data, failure, classes, hidden, chosen]), () => [
    el('h2', { class: 'hidden' }, 'Usage'),
    hidden.map((n) => el('p', { class: 'notice' }, n)),
    failure && el('p', { class: 'notice' }, failure),
    data?.notice && el('p', { class: 'notice' }, data.notice),
    el('div', { class: 'pair' }, el('section', {}, el('h3', {}, 'Leased now, by class'), classes.length ? classes.map(share) : el('p', { class: 'empty' }, loaded('classes') ? 'There are no classes.' : 'Reading the classes…')),
      el('section', {}, el('h3', {}, 'Leased Macs, last 30 days'), data ? curve(data.leased) : el('p', { class: 'empty' }, 'Reading the reports…'))),
    data && bill(data.rows),
  ]);
  return '';
}

// share draws how many Macs of a class are leased.
function share(c) {
  const part = (n) => (c.total ? (n / c.total) * 100 : 0);
  const percent = Math.round(part(c.occupied));
  const other = c.quarantined + c.offline;
  return el('div', { class: 'share' }, el('p', {}, el('b', {}, c.name), el('span', { class: 'muted' }, c.chip), el('span', { class: 'value' }, c.occupied + ' of ' + c.total + ' leased, ' + percent + ' %')),
    svg('svg', { height: 14, role: 'img', 'aria-label': c.name + ': ' + c.occupied + ' of ' + c.total + ' Macs leased, ' + percent + ' percent' },
      svg('rect', { class: 'ground', width: '100%', height: 14 }), svg('rect', { class: 'bound', width: part(c.occupied) + '%', height: 14 }),
      svg('rect', { class: 'held', width: part(c.held) + '%', x: part(c.occupied - c.held) + '%', height: 14 })),
    el('p', { class: 'muted' }, [c.held && c.held + ' of them held', c.available + ' available', other && other + ' offline or in quarantine'].filter(Boolean).join(', ')));
}

// curve draws the steps of the number of leased Macs.
function curve(steps) {
  const to = now(), from = to - 30 * 86400e3, highest = Math.max(1, ...steps.map((s) => s.leased));
  const top = nice(highest), x = (t) => ((t - from) / (to - from)) * 600, y = (n) => 150 - (n / top) * 140;
  let path = '', last = 0;
  for (const s of steps) {
    const at = Math.max(0, x(Date.parse(s.time)));
    path += (path ? 'H' + at.toFixed(1) + 'V' : 'M' + at.toFixed(1) + ' ') + y(s.leased).toFixed(1);
    last = s.leased;
  }
  if (!path) return el('p', { class: 'empty' }, 'No lease in this time.');
  path += 'H600';
  const days = [0, 10, 20, 30].map((d) => from + d * 86400e3);
  return el('figure', { class: 'curve' },
    el('div', { class: 'scale', 'aria-hidden': 'true' }, el('span', {}, top), el('span', {}, top / 2), el('span', {}, '0')),
    svg('svg', { viewBox: '0 0 600 152', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'Leased Macs over 30 days: ' + last + ' now, at most ' + highest },
      [0, top / 2, top].map((n) => svg('line', { class: 'grid', x1: 0, x2: 600, y1: y(n), y2: y(n) })), svg('path', { class: 'area', d: path + 'V150H' + x(Date.parse(steps[0].time)).toFixed(1) + 'Z' }), svg('path', { class: 'line', d: path })),
    el('figcaption', {}, days.map((d) => el('span', {}, date(d)))), el('p', { class: 'muted' }, last + ' now, at most ' + highest));
}

// nice returns the least even number with one digit that is not zero, or half of it, above n.
function nice(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 4, 5, 6, 8, 10].map((m) => m * power).find((m) => m >= n && (m / 2) % 1 === 0) ?? Math.ceil(n / 2) * 2;
}

function bill(rows) {
  const shown = rows.filter((r) => r.window === chosen).sort((a, b) => collate(a.tenant, b.tenant) || collate(a.class, b.class));
  const number = (title) => ({ title, number: true });
  return el('section', {}, el('fieldset', { class: 'choice' }, el('legend', { class: 'hidden' }, 'Window'), Object.entries(windows).map(([window, name]) => el('label', {},
    el('input', { type: 'radio', name: 'window', value: window, checked: window === chosen, onchange: () => { chosen = window; redraw(); root.querySelector('input[value="' + window + '"]')?.focus(); } }), name))),
  table('Billable use by tenant and class: ' + windows[chosen].toLowerCase(), [{ title: 'Tenant' }, { title: 'Class' }, { title: 'SKU' }, number('Leases'), number('Running'), number('Billable days'), number('Mac hours'), number('Held hours')],
    shown.map((r) => [r.tenant, r.class, r.sku ?? '', r.leases, r.running, r.billableDays, r.chassisHours, r.heldHours]), 'No lease in this window.'),
  shown.length > 0 && el('p', { class: 'muted' }, 'In all: ' + plural(shown.reduce((n, r) => n + r.billableDays, 0), 'billable day') + '. A billable day is one Mac for 24 hours, with two VMs.'));
}
