package race

import (
	"fmt"
	"io"
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/test/race/check"
)

// Options are the parameters of a race.
type Options struct {
	// Attempts is the total number of requests.
	Attempts int64
	// Limit bounds the time of the requests; 0 for no limit.
	Limit time.Duration
	// Clients is the number of concurrent clients.
	Clients int
	// Macs is the number of Macs.
	Macs int
	// Servers and Members are the numbers of servers and of etcd members.
	Servers, Members int
	// KillEvery is the interval at which a process is killed; 0 for never.
	KillEvery time.Duration
	// Cancel is the percentage of cancelled requests.
	Cancel int
	// Sample selects every nth lease and Mac, whose history is checked for linearizability.
	Sample int
	// Dir is the directory of the data and the logs.
	Dir string
	// Out receives progress messages.
	Out io.Writer
}

// NewOptions returns the options of a short race in a directory.
func NewOptions(dir string) Options {
	return Options{Attempts: 10000, Clients: 64, Macs: 50, Servers: 2, Members: 3, KillEvery: 5 * time.Second, Cancel: 3, Sample: 4, Dir: dir, Out: io.Discard}
}

// A Result is the result of a race.
type Result struct {
	// Attempts counts all requests that may have reached a server.
	Attempts int64
	// Successes, Refusals and Conflicts count requests with a known outcome. In a conflict another
	// client was faster; the request may be tried again.
	Successes, Refusals, Conflicts int64
	// Violations is the number of violations, and First has the first ones of each rule.
	Violations int64
	First      []check.Violation

	// Kinds has the outcomes of each kind of attempt.
	Kinds map[string][4]int64
	// Refused has examples of the refusals of each kind.
	Refused map[string][]string
	// Kills is the number of killed processes.
	Kills int64
	// Records is the number of records of each type.
	Records map[rackv1alpha1.AuditRecordType]int64
	// Revisions, Acks, Tables and Operations count the checked items; Undecided tables took too
	// long.
	Revisions                           int64
	Acks, Tables, Operations, Undecided int
	// Report is the servers' own compliance report at the end.
	Report rackv1alpha1.ComplianceReportStatus
	// Took is the time in which the clients raced.
	Took time.Duration
}

// String returns the result in one line.
func (r *Result) String() string {
	return fmt.Sprintf("race: attempts=%d successes=%d refusals=%d conflicts=%d violations=%d", r.Attempts, r.Successes, r.Refusals, r.Conflicts, r.Violations)
}
