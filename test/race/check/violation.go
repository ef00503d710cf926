package check

import (
	"fmt"
	"strings"
)

// A Violation is a state or a change that a rule forbids.
type Violation struct {
	// Revision is the revision of etcd that caused it; 0 if no single revision did.
	Revision int64
	// Subject is a key of etcd, or a name.
	Subject string
	// Rule is the name of the violated rule.
	Rule string
	// Message has the details.
	Message string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: revision %d: %s: %s", v.Rule, v.Revision, v.Subject, v.Message)
}

// maxViolations bounds the kept violations of a rule, so that many of one rule hide no others. All
// are counted.
const maxViolations = 100

// Violations returns the number of violations, and the first ones of each rule.
func (c *Checker) Violations() (int64, []Violation) { return c.total, c.violations }

func (c *Checker) violate(subject, rule, format string, args ...any) {
	c.total++
	if c.kept[rule]++; c.kept[rule] <= maxViolations {
		c.violations = append(c.violations, Violation{c.rev, strings.TrimPrefix(subject, prefix), rule, fmt.Sprintf(format, args...)})
	}
}
