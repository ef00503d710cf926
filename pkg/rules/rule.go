package rules

import "fmt"

// A Rule is the name of a rule that the system enforces. Violations in compliance reports have this
// name; messages of refusals begin with the result of String.
type Rule string

// The rules of Apple's licence, and the rule of the ledger that proves them.
const (
	// TwoVMsPerChassis: at most two macOS virtual machines run on one Mac (rule 1).
	TwoVMsPerChassis Rule = "TwoVMsPerChassis"
	// OneTenantPerChassis: a whole Mac is leased to one tenant at a time (rule 2).
	OneTenantPerChassis Rule = "OneTenantPerChassis"
	// TwentyFourHours: a lease keeps its Mac for at least 24 hours, and its floor never moves
	// backwards (rule 3).
	TwentyFourHours Rule = "TwentyFourHours"
	// UnbrokenLedger: the chain of records of each Mac is complete and unchanged.
	UnbrokenLedger Rule = "UnbrokenLedger"
)

// Reasons of refusals that are not rules of the licence.
const (
	// Fit: the virtual machines of a Mac share its cores, memory and storage.
	Fit Rule = "Fit"
	// NotYet: the request succeeds later.
	NotYet Rule = "NotYet"
	// LeaseNotUsable: the lease is being released, or has ended.
	LeaseNotUsable Rule = "LeaseNotUsable"
)

var texts = map[Rule]string{
	TwoVMsPerChassis:    "rule 1 (two VMs per Mac)",
	OneTenantPerChassis: "rule 2 (one tenant per Mac)",
	TwentyFourHours:     "rule 3 (at least 24 hours)",
	UnbrokenLedger:      "unbroken ledger",
	Fit:                 "no room",
	NotYet:              "not yet",
	LeaseNotUsable:      "lease not usable",
}

// String returns the text that begins the message of every refusal for the rule.
func (r Rule) String() string { return texts[r] }

// A Refusal is the error of a request that a rule refuses. Its message has the request, the limit
// and the remedy.
type Refusal struct {
	Rule    Rule
	Message string
}

// Error returns the text of the rule and the message.
func (r *Refusal) Error() string { return r.Rule.String() + ": " + r.Message }

func refuse(rule Rule, format string, args ...any) error {
	return &Refusal{Rule: rule, Message: fmt.Sprintf(format, args...)}
}
