package evidence

import (
	"slices"
	"time"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/timeline"
)

// Limits of the VMs and events that a page draws of one Mac. It has the number of the others.
const (
	maxMachines = 20_000
	maxEvents   = 20_000
)

// A History has what timelines and violations show of the records of a file.
type History struct {
	window  ledger.Window
	records map[string]*rack.AuditRecord // of violations, by namespace/name
	macs    map[string]*macHistory       // by serial number
}

// A macHistory is what happened on a Mac in the window.
type macHistory struct {
	node     string
	finished []timeline.VM
	running  map[string]timeline.VM // by the UID of the instance, or its name
	events   []timeline.Event
	omitted  int // virtual machines and events beyond the limits
}

// NewHistory returns the history without records, for a report on a window.
func NewHistory(window ledger.Window, report rack.ComplianceReportStatus) *History {
	h := &History{window: window, records: map[string]*rack.AuditRecord{}, macs: map[string]*macHistory{}}
	for _, v := range report.Violations {
		for _, name := range v.Records {
			h.records[name] = nil
		}
	}
	return h
}

// Add adds the next record of the file.
func (h *History) Add(record *rack.AuditRecord) {
	name := record.Namespace + "/" + record.Name
	if _, wanted := h.records[name]; wanted {
		h.records[name] = record
	}
	serial := record.Chassis.SerialNumber
	if serial == "" || record.Time.After(h.window.To) {
		return
	}
	mac := h.macs[serial]
	if mac == nil {
		mac = &macHistory{running: map[string]timeline.VM{}}
		h.macs[serial] = mac
	}
	mac.node = record.Chassis.NodeName
	mac.add(record, h.window.From)
}

func (m *macHistory) add(record *rack.AuditRecord, from time.Time) {
	at, d := record.Time.UTC(), record.Details
	switch record.Type {
	case rack.InstanceStarted:
		key, label := machineOf(record)
		m.running[key] = timeline.VM{Label: label, From: at}
	case rack.InstanceStopped:
		key, label := machineOf(record)
		vm, found := m.running[key]
		if !found {
			vm = timeline.VM{Label: label, From: from} // it started before the file
		}
		delete(m.running, key)
		if vm.To = at; !at.After(from) {
			return
		}
		if len(m.finished) == maxMachines {
			m.omitted++
			return
		}
		m.finished = append(m.finished, vm)
	case rack.InstanceRejected, rack.CrossTenantRejected, rack.FloorTamperRejected:
		m.event(timeline.Event{Kind: timeline.Rejection, At: at, Count: max(1, d.Count), Text: string(record.Type) + ": " + d.Message}, from)
	case rack.NodeQuarantined:
		m.event(timeline.Event{Kind: timeline.Quarantine, At: at, Text: d.Reason + ": " + d.Message}, from)
	}
}

func (m *macHistory) event(e timeline.Event, from time.Time) {
	switch {
	case e.At.Before(from):
	case len(m.events) == maxEvents:
		m.omitted++
	default:
		m.events = append(m.events, e)
	}
}

func machineOf(record *rack.AuditRecord) (key, label string) {
	if record.Instance == nil {
		return "", ""
	}
	label = record.Instance.Namespace + "/" + record.Instance.Name
	if record.Instance.UID != "" {
		return string(record.Instance.UID), label
	}
	return label, label
}

// machines returns the virtual machines that ran in the window.
func (m *macHistory) machines() []timeline.VM {
	all := slices.Clone(m.finished)
	for _, vm := range m.running {
		all = append(all, vm)
	}
	slices.SortFunc(all, func(a, b timeline.VM) int { return a.From.Compare(b.From) })
	return all
}
