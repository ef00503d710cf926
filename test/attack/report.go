package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// An attempt must not succeed: its answer is as wanted, and the stored objects are the same before
// and after.
type attempt struct {
	family, name, who string
	do                step
	want              want
	record            string // type/reason of the record by this actor that must be in the ledger; "none": no record is allowed
}

// A use is legitimate and must work.
type use struct {
	name, who string
	do        step
	want      want
}

// want is the expected answer.
type want struct {
	codes []int                   // the allowed codes
	says  string                  // the answer contains this text
	lacks []string                // the answer contains none of these
	holds func(body string) error // and this check succeeds
}

func (x want) check(a answer) error {
	if a.err != nil && a.code > 0 {
		return fmt.Errorf("answer %d could not be used: %w", a.code, a.err)
	}
	for _, code := range x.codes {
		if a.code != code {
			continue
		}
		text := a.text()
		if !strings.Contains(text, x.says) {
			return fmt.Errorf("answer %d does not say %q: %s", a.code, x.says, short(text))
		}
		for _, secret := range x.lacks {
			if strings.Contains(text, secret) {
				return fmt.Errorf("answer %d reveals %q", a.code, secret)
			}
		}
		if x.holds != nil {
			return x.holds(text)
		}
		return nil
	}
	return fmt.Errorf("answer %d, wanted %v: %s", a.code, x.codes, short(a.text()))
}

func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 400 {
		s = s[:400] + "..."
	}
	return s
}

type report struct {
	out                                            io.Writer
	family                                         string
	verbose                                        bool
	attempts, refused, through, legitimate, broken int
}

func (r *report) line(mark, family, who, name, result string) {
	fmt.Fprintf(r.out, "%s %-14s %-12s %-78s %s\n", mark, family, who, name, result)
}

// try makes attempts one after the other, and compares the stored objects before and after each.
func (r *report) try(ctx context.Context, w *world, attempts ...attempt) {
	if r.skips(attempts) {
		return
	}
	before, err := w.snapshot(ctx)
	if err != nil {
		r.through++
		r.line("✗", "-", "-", "snapshot of the stored objects", err.Error())
		return
	}
	for _, a := range attempts {
		if ctx.Err() != nil {
			return
		}
		if r.family != "" && a.family != r.family {
			continue
		}
		began := time.Now()
		records, recordsErr := w.countRecords(ctx, a)
		got := a.do(ctx, w, a.who)
		problem := a.want.check(got)
		if problem == nil {
			problem = recordsErr
		}
		if problem == nil {
			problem = w.checkRecord(ctx, a, began, records)
		}
		after, err := w.snapshot(ctx)
		if err == nil {
			if changes := before.compare(after); len(changes) > 0 {
				problem = fmt.Errorf("stored objects changed: %s; answer %d: %s", strings.Join(changes, "; "), got.code, short(got.text()))
			}
			before = after
		} else if problem == nil {
			problem = err
		}
		r.attempts++
		result := fmt.Sprintf("%d", got.code)
		if r.verbose {
			result += " " + short(got.text())
		}
		if problem != nil {
			r.through++
			r.line("✗", a.family, a.who, a.name, problem.Error())
			continue
		}
		r.refused++
		r.line("✓", a.family, a.who, a.name, result)
	}
}

func (r *report) skips(attempts []attempt) bool {
	for _, a := range attempts {
		if r.family == "" || a.family == r.family {
			return false
		}
	}
	return true
}

// use makes legitimate uses.
func (r *report) use(ctx context.Context, w *world, uses ...use) {
	for _, u := range uses {
		if ctx.Err() != nil {
			return
		}
		got := u.do(ctx, w, u.who)
		r.legitimate++
		if problem := u.want.check(got); problem != nil {
			r.broken++
			r.line("✗", "legitimate", u.who, u.name, problem.Error())
			continue
		}
		r.line("✓", "legitimate", u.who, u.name, fmt.Sprintf("%d", got.code))
	}
}

func (r *report) end() error {
	fmt.Fprintf(r.out, "\nattack: attempts=%d refused=%d through=%d legitimate=%d broken=%d\n", r.attempts, r.refused, r.through, r.legitimate, r.broken)
	if r.through+r.broken > 0 {
		return fmt.Errorf("%d attempts got through or were not refused as they should be, %d legitimate uses do not work; they are marked with ✗", r.through, r.broken)
	}
	return nil
}
