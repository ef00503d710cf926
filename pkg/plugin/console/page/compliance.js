// Compliance: the verdict of the ledger per window, and every violation with its records.
import { el, phaseText, replace, table } from './dom.js';
import { moment, plural } from './format.js';
import { remote } from './remote.js';

const rules = {
  TwoVMsPerChassis: 'Rule 1: at most two VMs on a Mac', OneTenantPerChassis: 'Rule 2: one tenant on a Mac', TwentyFourHours: 'Rule 3: at least 24 hours',
  UnbrokenLedger: 'The ledger is complete',
};

let root, report;

export function start(view, _select, redraw) {
  root = view;
  report = remote('compliance', () => !root.hidden, redraw);
}

export const open = () => report.open();

export function render() {
  const { data, failure } = report;
  replace(root, JSON.stringify([data, failure]), () => [
    el('h2', { class: 'hidden' }, 'Compliance'),
    failure && el('p', { class: 'notice' }, failure),
    data?.notice && el('p', { class: 'notice' }, data.notice),
    data ? content(data.reports) : el('p', { class: 'empty' }, 'Reading the reports…'),
  ].flat());
  return '';
}

function content(reports) {
  if (reports.length === 0) return [];
  const columns = ['Macs', 'Leases', 'VM starts', 'Most VMs at once', 'Overlaps', 'Early releases', 'Broken chains', 'Refused'].map((title) => ({ title, number: true }));
  return [
    table('Verdicts of the ledger', [{ title: 'Window' }, { title: 'Verdict' }, ...columns, { title: 'Records since' }], reports.map(({ window, status: s }) => [
      window, phaseText(s.verdict), s.chassis, s.leases, s.vmStarts, s.maxVMs, count(s.overlaps), count(s.floorBreaches), count(s.brokenChains), s.rejected, s.coveredSince ? moment(s.coveredSince) : 'all']), ''),
    el('p', { class: 'muted' }, 'Refused: requests that the server, the scheduler, an agent or the kernel stopped because of a rule. They are no violations.'),
    violations(reports),
  ];
}

const count = (n) => (n > 0 ? el('strong', { class: 'bad' }, n) : n);

// violations shows each violation once, although several windows contain it.
function violations(reports) {
  const found = new Map();
  for (const { window, status } of reports) {
    for (const v of status.violations ?? []) {
      const key = JSON.stringify([v.rule, v.serialNumber, v.time, v.message]);
      if (!found.has(key)) found.set(key, { ...v, windows: [] });
      found.get(key).windows.push(window);
    }
  }
  if (found.size === 0) return el('p', { class: 'fine' }, phaseText('Compliant'), ' No violation in these windows.');
  return el('section', { class: 'violations', 'aria-label': plural(found.size, 'violation') }, el('h3', {}, plural(found.size, 'violation')),
    [...found.values()].map((v) => el('article', { class: 'violation' },
      el('h4', {}, phaseText('Violated'), ' ', rules[v.rule] ?? v.rule),
      el('p', {}, v.message),
      el('dl', {}, [['Mac', v.serialNumber], ['Time', v.time && moment(v.time) + ' UTC'], ['Windows', v.windows.join(', ')], ['Records', (v.records ?? []).join(', ')]]
        .filter(([, value]) => value).map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value)))))));
}
