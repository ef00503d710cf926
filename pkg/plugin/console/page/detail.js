// The selected Mac: hardware, lease, instances, images, conditions and records.
import { el, phaseText, replace } from './dom.js';
import { age, bytes, floorText, moment } from './format.js';
import { denied, instancesByLease, leaseOf, macByName, now, slotsOf } from './store.js';

let root, redraw, selected = null, opener = null, detail = null, asked = '';

export function start(aside, schedule) {
  [root, redraw] = [aside, schedule];
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && selected) close();
  });
}

// select shows a Mac. Its closing returns the focus to the element from which it was opened.
export function select(name, from) {
  [selected, opener, detail, asked] = [name, from, null, ''];
  root.hidden = false;
  document.body.dataset.detail = 'open';
  render();
  root.scrollTop = 0;
  root.focus();
}

function close() {
  selected = null;
  root.hidden = true;
  delete document.body.dataset.detail;
  (opener?.isConnected ? opener : document.querySelector('[role=tab][aria-selected=true]')).focus();
}

// read reads what the stream does not have, again whenever the Mac has changed.
async function read(name, signature) {
  if (asked === signature) return;
  asked = signature;
  let answer;
  try {
    const response = await fetch('mac?name=' + encodeURIComponent(name));
    answer = response.ok ? await response.json() : { records: [], notices: [await response.text()] };
  } catch (error) {
    answer = { records: [], notices: ['No answer: ' + error.message] };
    asked = '';
  }
  if (selected === name) {
    detail = answer;
    redraw();
  }
}

export function render() {
  if (!selected) return;
  const mac = macByName().get(selected);
  read(selected, JSON.stringify([mac, mac && leaseOf(mac)]));
  const at = now();
  const instances = mac?.lease ? instancesByLease().get(mac.tenant + '/' + mac.lease) ?? [] : [];
  const signature = JSON.stringify([selected, mac, mac && leaseOf(mac), instances, detail, Math.floor(at / 60e3)]);
  replace(root, signature, () => (mac ? content(mac, leaseOf(mac), instances, at) : [heading(selected), el('p', { class: 'empty' }, 'This Mac is gone.')]));
}

const heading = (name) => el('header', {}, el('h2', {}, name), el('button', { type: 'button', class: 'close', 'aria-label': 'Close', onclick: close }, '×'));

const facts = (...pairs) => el('dl', {}, pairs.filter(([, value]) => value).map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));

const part = (title, ...children) => el('section', {}, el('h3', {}, title), children);

function content(mac, lease, instances, at) {
  root.setAttribute('aria-label', 'Mac ' + mac.name);
  const hardware = detail?.hardware ?? {};
  return [
    heading(mac.name),
    el('p', { class: 'summary' }, phaseText(mac.phase), mac.reason && ' · ' + mac.reason),
    mac.message && el('p', { class: 'notice' }, mac.message),
    facts(['Place', [mac.site, mac.rack && 'rack ' + mac.rack, mac.shelf && 'shelf ' + mac.shelf].filter(Boolean).join(', ')], ['Serial', mac.serial], ['Class', mac.class],
      ['Agent', heartbeat(mac, at)]),
    part('Lease', mac.lease ? facts(['Lease', mac.tenant + '/' + mac.lease], ['Phase', lease && phaseText(lease.phase)], ['Bound', lease?.bound && moment(lease.bound) + ' (' + age(lease.bound, at) + ' ago)'],
      ['Floor', mac.floor && moment(mac.floor) + ' (' + floorText(mac.floor, at) + ')'], ['Held since', moment(lease?.held)], ['Expires', moment(lease?.expires)],
      ['Waits for', lease?.message || lease?.reason]) : el('p', { class: 'empty' }, 'No lease.')),
    part('VM slots', el('ol', { class: 'slot-list' }, slotsOf(mac).map((name) => slot(name, instances, at)))),
    part('Hardware', denied('macs') ? el('p', { class: 'empty' }, 'Only operators see the hardware.') : facts(['Model', hardware.modelIdentifier], ['CPU', hardware.cpu && hardware.cpu + ' cores'],
      ['Memory', hardware.memory], ['Disk', hardware.storage && hardware.storage + ', ' + (hardware.freeStorage || '0') + ' free'], ['macOS', hardware.macOSVersion], ['Agent', hardware.agentVersion])),
    part('Images on disk', (detail?.images ?? []).length ? el('ul', {}, detail.images.map((i) => el('li', {}, i.name, el('span', { class: 'muted' }, [bytes(i.sizeBytes), i.lastUsedAt && 'used ' + age(i.lastUsedAt, at) + ' ago'].filter(Boolean).join(', ')))))
      : el('p', { class: 'empty' }, detail ? 'None.' : 'Reading…')),
    part('Conditions', (detail?.conditions ?? []).length ? el('ul', {}, detail.conditions.map((c) => el('li', {}, el('b', {}, c.type), ' ' + c.status, el('span', { class: 'muted' }, c.reason + ', ' + age(c.lastTransitionTime, at)), c.message && el('p', {}, c.message))))
      : el('p', { class: 'empty' }, detail ? 'None.' : 'Reading…')),
    part('Last records', (detail?.notices ?? []).map((n) => el('p', { class: 'notice' }, n)), (detail?.records ?? []).length ? el('ol', { class: 'records' }, detail.records.map((r) => el('li', {},
      el('b', {}, r.type), el('span', { class: 'muted' }, moment(r.time) + (r.tenant ? ', ' + r.tenant : '')), r.message && el('p', {}, r.message))))
      : el('p', { class: 'empty' }, detail ? 'None.' : 'Reading…')),
  ];
}

function heartbeat(mac, at) {
  if (!mac.heartbeat) return '';
  const state = mac.heartbeat === 'True' ? 'online for ' : mac.heartbeat === 'False' ? 'no heartbeat for ' : 'unknown for ';
  return state + age(mac.heartbeatSince, at);
}

function slot(name, instances, at) {
  if (!name) return el('li', { class: 'empty' }, 'free');
  const instance = instances.find((i) => i.name === name);
  if (!instance) return el('li', {}, name === '?' ? 'in use' : name);
  return el('li', {}, phaseText(instance.phase), ' ', el('b', {}, name), el('span', { class: 'muted' }, instance.image + (instance.started ? ', ' + age(instance.started, at) : '')),
    instance.message && el('p', {}, instance.message));
}
