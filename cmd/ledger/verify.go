package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/rules"
)

func newVerifyCommand(clock clock.PassiveClock) *cobra.Command {
	var heads string
	var expected expectation
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check that a file is an export of an intact ledger",
		Long: `Check that each line of an export (JSON Lines or CSV; - is the standard input) is byte for byte as macrack-ledger
export writes it, and that each record has its place in its chain.

The records alone do not show whether the last records, or whole chains, are missing. --heads FILE writes the head of each
chain to a file; --expect FILE fails unless the ledger continues the heads in that file. If the FILE of --heads exists,
it is checked in the same way before it is replaced, so one scheduled command is sufficient for both. Store the file where the
operators of the ledger cannot write.

Records that a restored etcd has lost, and whose loss is itself recorded, are printed as "lost". They do not break the
ledger, but reports on the time of the loss are Incomplete.

If all checks pass, the last line of the output is "ledger: records=N chains=N broken=0" and the exit code is 0.
Exit code 1: the ledger is broken, the file is not an export, or it has no records. Exit code 2: the check could not
run, for example because the file is unreadable or the heads file was edited.`,
		Example: `  macrack-ledger verify ledger.jsonl --heads heads.txt
  macrack-ledger verify ledger.jsonl --expect heads-of-last-week.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return verify(cmd.Context(), args[0], heads, expected, cmd.InOrStdin(), cmd.OutOrStdout(), clock.Now())
		},
	}
	cmd.Flags().StringVar(&heads, "heads", "", "File to write the head of each chain to if the ledger is intact. An existing file is replaced only if the ledger continues it.")
	expected.addFlags(cmd)
	return cmd
}

// expectation is the set of heads that the ledger must continue.
type expectation struct {
	file      string
	retention time.Duration
}

func (e *expectation) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&e.file, "expect", "", "File of heads written by verify --heads. The ledger is broken if it does not continue them.")
	cmd.Flags().DurationVar(&e.retention, "retention", rules.MinimumAuditRetention,
		"Retention of records (audit.retention of the RackConfig), in hours. Records known to --expect may be missing only after that.")
}

// read returns the expected heads, or nil.
func (e *expectation) read() (*ledger.Heads, error) {
	if e.retention < rules.MinimumAuditRetention {
		return nil, fmt.Errorf("--retention %s is too short; use at least %s", e.retention, rules.MinimumAuditRetention)
	}
	if e.file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(e.file)
	if err != nil {
		return nil, err
	}
	heads, err := ledger.DecodeHeads(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.file, err)
	}
	return heads, nil
}

// verdict is the error of a ledger that is broken or not verified.
type verdict string

func (v verdict) Error() string { return string(v) }

func verify(ctx context.Context, path, headsPath string, expected expectation, stdin io.Reader, stdout io.Writer, now time.Time) error {
	if _, err := os.Stat(headsPath); err == nil && expected.file == "" {
		expected.file = headsPath
	} else if err == nil && filepath.Clean(headsPath) != filepath.Clean(expected.file) {
		return fmt.Errorf("%s exists and is not the file of --expect; write the heads to a new file, or pass this one to --expect", headsPath)
	}
	known, err := expected.read()
	if err != nil {
		return err
	}
	heads := ledger.NewHeads(now)
	counts, records, losses := map[string]int64{}, 0, []string(nil)
	findings, err := findIn(ctx, path, stdin, known, expected.retention, ledger.Everything(now), now, func(record *rack.AuditRecord) {
		name, _, _ := ledger.SplitName(record.Name)
		counts[name]++
		records++
		heads.Add(record)
		if message, ok := ledger.LossIn(record); ok {
			losses = append(losses, message)
		}
	})
	var malformed *ledger.MalformedError
	if errors.As(err, &malformed) {
		fmt.Fprintf(stdout, "malformed: %v\nledger: not verified\n", err)
		return verdict("the file is not an export of a ledger")
	}
	if err != nil {
		return err
	}

	table := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CHAIN\tRECORDS\tFIRST\tLAST\tSINCE\tUNTIL\tLAST-HASH")
	for _, name := range slices.Sorted(maps.Keys(heads.Chains)) {
		c := heads.Chains[name]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", printable(name), counts[name], c.First, c.Sequence,
			c.FirstTime.Format(time.RFC3339), c.Time.Format(time.RFC3339), printable(c.Hash))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if known != nil {
		fmt.Fprintf(stdout, "expected: the heads of %d chains, written %s\n", len(known.Chains), known.Written.Format(time.RFC3339))
		for _, name := range slices.Sorted(maps.Keys(known.Chains)) {
			if old, new := known.Chains[name], heads.Chains[name]; new.First > old.First {
				fmt.Fprintf(stdout, "gone: records %d to %d of %s\n", old.First, new.First-1, name)
			} else if new.First == 0 {
				fmt.Fprintf(stdout, "gone: all records of %s (%d to %d)\n", name, old.First, old.Sequence)
			}
		}
	}
	status, lost := findings.Reports[0], findings.Lost[0]
	broken := status.BrokenChains - lost
	for _, message := range losses {
		fmt.Fprintf(stdout, "lost: %s\n", printable(message))
	}
	for _, violation := range status.Violations {
		if violation.Rule == string(rules.UnbrokenLedger) && !slices.Contains(losses, violation.Message) {
			fmt.Fprintf(stdout, "broken: %s\n", printable(violation.Message))
		}
	}
	if broken == 0 && records > 0 && headsPath != "" {
		content := heads.Encode()
		if _, err := ledger.DecodeHeads(content); err != nil {
			return fmt.Errorf("heads not written, because they could not be read again: %w", err)
		}
		err := writeFile(headsPath, func(w io.Writer) error {
			_, err := w.Write(content)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "heads: chains=%d sha256=%x\n", len(heads.Chains), sha256.Sum256(content))
	}
	if lost > 0 {
		fmt.Fprintf(stdout, "lost history: chains=%d; reports on the time of the loss are Incomplete\n", lost)
	}
	fmt.Fprintf(stdout, "ledger: records=%d chains=%d broken=%d\n", records, len(heads.Chains), broken)
	switch {
	case broken > 0:
		return verdict("the ledger is broken")
	case records == 0:
		return verdict("the file has no records; nothing was verified")
	}
	return nil
}

// printable returns s without the control characters of terminals.
func printable(s string) string {
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// reportOn builds a report from the records of a file, and calls see for each record.
func reportOn(ctx context.Context, path string, stdin io.Reader, known *ledger.Heads, retention time.Duration, window ledger.Window, now time.Time,
	see func(*rack.AuditRecord)) (rack.ComplianceReportStatus, error) {
	findings, err := findIn(ctx, path, stdin, known, retention, window, now, see)
	if err != nil {
		return rack.ComplianceReportStatus{}, err
	}
	return findings.Reports[0], nil
}

// findIn is like reportOn, and returns all findings.
func findIn(ctx context.Context, path string, stdin io.Reader, known *ledger.Heads, retention time.Duration, window ledger.Window, now time.Time,
	see func(*rack.AuditRecord)) (*ledger.Findings, error) {
	source, anchors := open(path, stdin, known, retention, now)
	return ledger.Find(ctx, seen(source, see), anchors, window)
}

// open returns the records of a file, and the anchors that follow from the known heads, if any.
func open(path string, stdin io.Reader, known *ledger.Heads, retention time.Duration, now time.Time) (ledger.RecordSource, ledger.Anchors) {
	source := fileSource(path)
	if path == "-" {
		source = ledger.ReadFrom(stdin)
	}
	if known == nil {
		return source, nil
	}
	return source, known.Anchors(now, retention)
}

func fileSource(path string) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(ledger.ReadFrom(file)(ctx, yield), file.Close())
	}
}

func seen(source ledger.RecordSource, see func(*rack.AuditRecord)) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		return source(ctx, func(record *rack.AuditRecord) error {
			see(record)
			return yield(record)
		})
	}
}
