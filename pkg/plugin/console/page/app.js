// The console: tabs, the filter, the stream of the server, and one picture per frame.
import { byId, el, shape, text } from './dom.js';
import * as compliance from './compliance.js';
import * as detail from './detail.js';
import { clock } from './format.js';
import * as images from './images.js';
import { enter, rove } from './keys.js';
import * as leases from './leases.js';
import * as queue from './queue.js';
import * as rack from './rack.js';
import { apply, filter, loaded, now, problem, setWords, store } from './store.js';
import * as usage from './usage.js';

const views = { rack, leases, queue, compliance, usage, images };
const filtered = ['rack', 'leases', 'queue'];
const refresh = 10e3; // times are drawn again
const retry = 2e3;

let active = 'rack', lost = null, scheduled = false, pictured = false;

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}

function draw() {
  drawLegend();
  const found = views[active].render();
  detail.render();
  if (byId('found').textContent !== (found ?? '')) byId('found').textContent = found ?? '';
  drawConnection();
  if (!pictured && loaded('macs') && loaded('leases') && loaded('instances')) {
    pictured = true;
    requestAnimationFrame(() => setTimeout(() => performance.mark('first-picture')));
  }
}

function drawConnection() {
  const failed = problem();
  let banner = '', state = store.revision ? 'Live' : 'Connecting…';
  if (lost) {
    banner = 'Disconnected since ' + clock(lost) + ' UTC. This is the last known state. Reconnecting; if kubectl macrack ui has ended, start it again.';
  } else if (failed) {
    banner = 'No answer from the cluster since ' + clock(failed.since) + ' UTC. This is the last known state. Trying again: ' + failed.problem;
  }
  if (banner) state = 'Stale';
  byId('connection').dataset.state = state;
  if (byId('connection').textContent !== state) byId('connection').textContent = state;
  byId('banner').hidden = !banner;
  if (byId('banner').textContent !== text(banner)) byId('banner').textContent = text(banner);
}

function drawLegend() {
  const legend = byId('legend');
  for (const [phase, count] of rack.counts()) {
    let button = legend.querySelector('[data-phase="' + phase + '"]');
    if (!button) {
      button = el('button', { type: 'button', 'data-phase': phase, 'aria-pressed': 'false', onclick: () => toggle(phase) }, shape(phase), el('span', {}, phase), el('b'));
      legend.append(button);
    }
    button.hidden = count === 0 && !filter.phases.has(phase);
    const number = button.querySelector('b');
    if (number.textContent !== String(count)) number.textContent = count;
  }
}

function toggle(phase) {
  if (!filter.phases.delete(phase)) filter.phases.add(phase);
  for (const button of byId('legend').children) button.setAttribute('aria-pressed', filter.phases.has(button.dataset.phase));
  schedule();
}

function show(name) {
  active = name in views ? name : 'rack';
  for (const view of Object.keys(views)) {
    const tab = byId('tab-' + view), on = view === active;
    tab.setAttribute('aria-selected', on);
    tab.tabIndex = on ? 0 : -1;
    byId('view-' + view).hidden = !on;
  }
  document.body.dataset.view = active;
  byId('tools').hidden = !filtered.includes(active);
  byId('legend').hidden = active === 'queue';
  document.title = byId('tab-' + active).textContent + ' · MacRack';
  history.replaceState(null, '', '#' + active);
  views[active].open?.();
  draw();
}

function connect() {
  const stream = new EventSource('stream');
  const receive = (whole) => (event) => {
    lost = null;
    apply(JSON.parse(event.data), whole);
    schedule();
  };
  stream.addEventListener('state', receive(true));
  stream.addEventListener('change', receive(false));
  stream.onerror = () => {
    lost ??= now();
    drawConnection();
    stream.close();
    setTimeout(connect, retry);
  };
}

for (const [name, view] of Object.entries(views)) {
  view.start(byId('view-' + name), detail.select, schedule);
  byId('tab-' + name).addEventListener('click', () => show(name));
  byId('tab-' + name).addEventListener('focus', () => active === name || show(name));
}
detail.start(byId('detail'), schedule);
rove(byId('tabs'), '[role=tab]');
enter(byId('tabs'), '[role=tab]');
byId('filter').addEventListener('input', (event) => {
  setWords(event.target.value);
  schedule();
});
const toFilter = (event) => event.key === '/' && !event.target.closest('input') && !byId('tools').hidden;
document.addEventListener('keydown', (event) => toFilter(event) && event.preventDefault()); // no search of the browser
document.addEventListener('keyup', (event) => toFilter(event) && byId('filter').focus());
window.addEventListener('hashchange', () => show(location.hash.slice(1)));
setInterval(schedule, refresh);
show(location.hash.slice(1));
connect();
