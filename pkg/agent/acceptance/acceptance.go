// Package acceptance checks on a Mac what no test can show elsewhere. A check does its steps and
// measures, or a person does them and answers. The checks are a table, from which the tables in the
// documentation are generated.
package acceptance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry/remote/auth"

	"macrack.io/macrack/pkg/agent/doctor"
	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
)

// Page is the page of the documentation that has a check.
type Page string

const (
	// PageMacs is docs/macos.md.
	PageMacs Page = "macos.md"
	// PageGuests is docs/guest.md.
	PageGuests Page = "guest.md"
)

// Check is one check.
type Check struct {
	ID string
	// Page and Section are its place in the documentation.
	Page    Page
	Section string
	Title   string
	// Steps are what Run or a person does, Expected the result, Background the reason.
	Steps, Expected, Background string
	// Run does the steps; nil if a person does them.
	Run func(context.Context, *bench) error
}

// Checks returns all checks, in the order in which they run.
func Checks() []Check {
	return slices.Concat(automaticChecks, hostChecks, vmChecks, guestChecks)
}

// Outcome is the outcome of a check.
type Outcome string

const (
	// Pass: the result is as expected.
	Pass Outcome = "pass"
	// Fail: the result is not as expected; the message has the finding.
	Fail Outcome = "fail"
	// Ask: a person must look, and has not answered.
	Ask Outcome = "ask"
	// Skip: the check does not apply, or a person has left it out.
	Skip Outcome = "skip"
	// Pending: the check continues with the next run, such as after a reboot.
	Pending Outcome = "pending"
)

// Result is the result of a check.
type Result struct {
	ID      string  `json:"id"`
	Section string  `json:"section"`
	Title   string  `json:"title"`
	Outcome Outcome `json:"outcome"`
	// Message is the finding, the question, or the note of a person.
	Message string `json:"message,omitempty"`
	// Measured has the measurements, by name.
	Measured map[string]string `json:"measured,omitempty"`
	// Log is the end of the log of the virtual machine that failed.
	Log     string    `json:"log,omitempty"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
}

// Answer is the answer of a person.
type Answer struct {
	Outcome Outcome
	Note    string
}

// Config configures a run.
type Config struct {
	// Dir is a directory of its own for slots and disks. It must be short, because it is part of
	// socket paths.
	Dir      string
	Launcher slots.Launcher
	// NewMachineID returns a unique machine identifier.
	NewMachineID func(context.Context) (string, error)
	Host         host.Host
	// Doctor runs the checks of the host; nil for a simulated one.
	Doctor func(context.Context) []doctor.Result
	// KeychainLocked reports whether the login keychain is locked; nil for a simulated host.
	KeychainLocked func(context.Context) (bool, error)
	// Image is the image of the virtual machines.
	Image images.Cached
	// CPU, Memory and DiskSize are the size of each virtual machine, in bytes.
	CPU              int
	Memory, DiskSize int64
	Clock            clock.WithTicker
	// Registry is a repository for a push and a pull; empty for none. Credential is that of the
	// push.
	Registry   string
	Credential auth.CredentialFunc
	// BootTimeout bounds the time until a guest responds, and Grace the time of its shutdown.
	BootTimeout, Grace time.Duration
	// Repeat is the number of repetitions of the checks that repeat, and Commands the number of
	// commands that run in parallel.
	Repeat, Commands int
	// Ask shows a check or a question to a person; nil without a person.
	Ask func(ctx context.Context, title, question string) Answer
	// Progress receives a line for each result; may be nil.
	Progress io.Writer
	// Only are the IDs of the checks to run; empty for all.
	Only []string
}

// errAsk is the error of a check whose result a person must judge.
type errAsk struct{ question string }

func (e *errAsk) Error() string { return e.question }

// errLater is the error of a check whose question was not answered.
type errLater struct{ question string }

func (e *errLater) Error() string { return e.question }

// errSkip is the error of a check that does not apply.
type errSkip struct{ reason string }

func (e *errSkip) Error() string { return e.reason }

// errPending is the error of a check that continues with the next run.
type errPending struct{ next string }

func (e *errPending) Error() string { return e.next }

// Run runs the checks, and calls save after each. Results of report that passed stay, so that a run
// continues after a reboot.
func Run(ctx context.Context, config Config, report *Report, save func(*Report) error) error {
	if err := validate(config.Only); err != nil {
		return err
	}
	for _, check := range Checks() {
		old := report.find(check.ID)
		if len(config.Only) > 0 && !slices.Contains(config.Only, check.ID) || old != nil && old.Outcome == Pass && len(config.Only) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		result := run(ctx, config, check, old)
		report.set(result)
		if config.Progress != nil {
			fmt.Fprintf(config.Progress, "%-8s%s: %s\n", result.Outcome, check.ID, result.Message)
		}
		if err := save(report); err != nil {
			return err
		}
	}
	return nil
}

func validate(only []string) error {
	for _, id := range only {
		if !slices.ContainsFunc(Checks(), func(c Check) bool { return c.ID == id }) {
			return fmt.Errorf("unknown check %q; see --list", id)
		}
	}
	return nil
}

// run runs one check. old is its result in an earlier run; it may be nil.
func run(ctx context.Context, config Config, check Check, old *Result) Result {
	began := config.Clock.Now()
	b := &bench{Config: config, title: check.Title, measured: map[string]string{}}
	if old != nil && old.Outcome == Pending {
		b.pending = old.Measured
	}
	err := error(&errAsk{"Steps: " + check.Steps + "\nExpected: " + check.Expected})
	if check.Run != nil {
		err = b.do(ctx, check.Run)
	}
	result := Result{ID: check.ID, Section: check.Section, Title: check.Title, Measured: b.measured, At: began.UTC().Truncate(time.Second)}
	result.Outcome, result.Message = b.judge(ctx, err)
	if result.Outcome == Fail {
		result.Log = b.log
	}
	result.Seconds = config.Clock.Since(began).Round(time.Millisecond).Seconds()
	return result
}

// judge turns the error of a check into its outcome.
func (b *bench) judge(ctx context.Context, err error) (Outcome, string) {
	var ask *errAsk
	var later *errLater
	var skip *errSkip
	var pending *errPending
	switch {
	case err == nil:
		return Pass, ""
	case errors.As(err, &later):
		return Ask, later.question
	case errors.As(err, &skip):
		return Skip, skip.reason
	case errors.As(err, &pending):
		return Pending, pending.next
	case errors.As(err, &ask):
		answer := b.ask(ctx, ask.question)
		if answer.Outcome == Ask {
			return Ask, ask.question
		}
		return answer.Outcome, answer.Note
	default:
		return Fail, err.Error()
	}
}

// ask asks a person, if there is one.
func (b *bench) ask(ctx context.Context, question string) Answer {
	if b.Ask == nil {
		return Answer{Outcome: Ask}
	}
	return b.Ask(ctx, b.title, question)
}
