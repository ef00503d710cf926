package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/ledger"
)

func newVerifyCommand(clock clock.PassiveClock) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE",
		Short: "Check the hashes and the order of the records in a file",
		Long: `Check that each record in an export (JSON Lines or CSV; - is the standard input) is as the server wrote it and has
its place in the chain of its Mac. Prints each chain with its last hash, which vouches for all of the chain: compare it with
the one of an earlier export. Exits with 1 if a chain is broken.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return verify(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout(), clock.Now())
		},
	}
}

// A chain is what a file has of the records of a Mac or a tenant.
type chain struct {
	records     int64
	first, last *rack.AuditRecord
}

func verify(ctx context.Context, path string, stdin io.Reader, stdout io.Writer, now time.Time) error {
	var chains map[string]*chain
	status, err := reportOn(ctx, path, stdin, ledger.Everything(now), func() { chains = map[string]*chain{} }, func(record *rack.AuditRecord) {
		name, _, _ := ledger.SplitName(record.Name)
		c := chains[name]
		if c == nil {
			c = &chain{first: record}
			chains[name] = c
		}
		c.records++
		c.last = record
	})
	if err != nil {
		return err
	}

	table := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CHAIN\tRECORDS\tFIRST\tLAST\tSINCE\tUNTIL\tLAST-HASH")
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		c := chains[name]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", name, c.records, c.first.Sequence, c.last.Sequence,
			c.first.Time.UTC().Format(time.RFC3339), c.last.Time.UTC().Format(time.RFC3339), c.last.Hash)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, violation := range status.Violations {
		if violation.Rule == ledger.RuleUnbroken {
			fmt.Fprintf(stdout, "broken: %s\n", violation.Message)
		}
	}
	fmt.Fprintf(stdout, "ledger: records=%d chains=%d broken=%d\n", status.Records, len(chains), status.BrokenChains)
	if status.BrokenChains > 0 {
		return errors.New("the ledger is broken")
	}
	return nil
}

func newReportCommand(clock clock.PassiveClock) *cobra.Command {
	var window, format string
	cmd := &cobra.Command{
		Use:   "report FILE",
		Short: "Report from the records in a file whether the three rules held",
		Long: `Print the ComplianceReport that the server would give from the records in an export (JSON Lines or CSV; - is the
standard input). Exits with 1 unless the verdict is Compliant.`,
		Example: `  macrack-ledger report ledger.jsonl --window 90d
  macrack-ledger report ledger.csv --window 2026-08-01..2026-11-01 --format json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return report(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout(), window, format, clock.Now())
		},
	}
	cmd.Flags().StringVar(&window, "window", "90d", "Hours or days back from now, such as 24h or 90d, or two dates such as 2026-08-01..2026-11-01.")
	cmd.Flags().StringVar(&format, "format", "yaml", "Format of the report: yaml or json.")
	return cmd
}

func report(ctx context.Context, path string, stdin io.Reader, stdout io.Writer, window, format string, now time.Time) error {
	w, err := ledger.ParseWindow(window, now)
	if err != nil {
		return err
	}
	encode := yaml.Marshal
	switch format {
	case "yaml":
	case "json":
		encode = func(v any) ([]byte, error) {
			out, err := json.MarshalIndent(v, "", "  ")
			return append(out, '\n'), err
		}
	default:
		return fmt.Errorf("unknown format %q: use yaml or json", format)
	}
	status, err := reportOn(ctx, path, stdin, w, func() {}, func(*rack.AuditRecord) {})
	if err != nil {
		return err
	}
	external := &v1alpha1.ComplianceReport{}
	internal := &rack.ComplianceReport{ObjectMeta: metav1.ObjectMeta{Name: w.Name, CreationTimestamp: metav1.NewTime(now.UTC().Truncate(time.Second))}, Status: status}
	if err := v1alpha1.Convert_rack_ComplianceReport_To_v1alpha1_ComplianceReport(internal, external, nil); err != nil {
		return err
	}
	external.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("ComplianceReport"))
	out, err := encode(external)
	if err != nil {
		return err
	}
	if _, err := stdout.Write(out); err != nil {
		return err
	}
	if status.Verdict != rack.ComplianceCompliant {
		return fmt.Errorf("the verdict is %s", status.Verdict)
	}
	return nil
}

// reportOn makes a report on the records of a file, and shows each to see. Before the records come, it calls begin:
// twice, if the file turns out not to be in order and must be sorted.
func reportOn(ctx context.Context, path string, stdin io.Reader, window ledger.Window, begin func(), see func(*rack.AuditRecord)) (rack.ComplianceReportStatus, error) {
	try := func(source ledger.RecordSource) (rack.ComplianceReportStatus, error) {
		begin()
		statuses, err := ledger.Report(ctx, seen(source, see), nil, window)
		if err != nil {
			return rack.ComplianceReportStatus{}, err
		}
		return statuses[0], nil
	}
	if path == "-" {
		return try(ledger.Sorted(ledger.ReadFrom(stdin)))
	}
	status, err := try(fileSource(path))
	if errors.Is(err, ledger.ErrNotInOrder) {
		return try(ledger.Sorted(fileSource(path)))
	}
	return status, err
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
