package rules

import "fmt"

// A Rule is one of the rules that the system keeps. Its text begins the message of every refusal.
type Rule string

const (
	// TwoVMs: at most two macOS virtual machines run on one Mac.
	TwoVMs Rule = "rule 1 (two VMs per Mac)"
	// OneTenant: a Mac belongs to one tenant at a time, whole.
	OneTenant Rule = "rule 2 (one tenant per Mac)"
	// OneDay: a Mac is a tenant's for 24 hours at least, and the clock never runs backwards.
	OneDay Rule = "rule 3 (24 hours at least)"
	// Fit is not of the licence: the virtual machines of a Mac share what it has.
	Fit Rule = "no room"
	// NotYet is not of the licence: only time is missing.
	NotYet Rule = "not yet"
)

// A Refusal says which rule refuses something, what was asked, what is allowed and what to do.
type Refusal struct {
	Rule    Rule
	Message string
}

// Error returns the rule and the message.
func (r *Refusal) Error() string { return string(r.Rule) + ": " + r.Message }

func refuse(rule Rule, format string, args ...any) error {
	return &Refusal{Rule: rule, Message: fmt.Sprintf(format, args...)}
}
