package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/ledger"
)

type reportOptions struct {
	window, format, html string
	expected             expectation
}

func newReportCommand(clock clock.PassiveClock) *cobra.Command {
	options := &reportOptions{}
	cmd := &cobra.Command{
		Use:   "report FILE",
		Short: "Report from the records in a file whether the three rules held",
		Long: `Print the ComplianceReport of the records in an export (JSON Lines or CSV; - is the standard input), as the server
computes it. --expect FILE makes the verdict Incomplete unless the ledger continues the heads in that file.

--html FILE writes the report with its evidence as one page, for a browser or for printing on A4: the verdict, a timeline of
each Mac, each violation with its records, and the heads of the chains. The page needs no network and has no scripts.
The exit code is 0 if the verdict is Compliant, 1 if it is not or the file is not an export, and 2 if the file could not be read.`,
		Example: `  macrack-ledger report ledger.jsonl --window 90d
  macrack-ledger report ledger.csv --window 2026-08-01..2026-11-01 --format json
  macrack-ledger report ledger.jsonl --window 2026-11 --expect heads.txt --html evidence.html`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return options.run(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout(), clock.Now())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.window, "window", "90d", "Window in UTC: hours or days back from now such as 24h or 90d, today, month, a month such as 2026-11, or two dates such as 2026-08-01..2026-11-01.")
	flags.StringVar(&options.format, "format", "yaml", "Format of the report: yaml or json.")
	flags.StringVar(&options.html, "html", "", "File to write the report and its evidence to, as HTML, instead of printing the report. The file appears only when complete.")
	options.expected.addFlags(cmd)
	return cmd
}

func (o *reportOptions) run(ctx context.Context, path string, stdin io.Reader, stdout io.Writer, now time.Time) error {
	window, err := ledger.ParseWindow(o.window, now)
	if err != nil {
		return err
	}
	var result rack.ComplianceVerdict
	if o.html != "" {
		result, err = writeEvidence(ctx, path, o.html, o.expected, window, stdout, now)
	} else {
		result, err = o.print(ctx, path, window, stdin, stdout, now)
	}
	if err == nil && result != rack.ComplianceCompliant {
		return verdict(fmt.Sprintf("the verdict is %s", result))
	}
	return err
}

// print prints the report and returns its verdict.
func (o *reportOptions) print(ctx context.Context, path string, window ledger.Window, stdin io.Reader, stdout io.Writer, now time.Time) (rack.ComplianceVerdict, error) {
	encode := yaml.Marshal
	switch o.format {
	case "yaml":
	case "json":
		encode = func(v any) ([]byte, error) {
			out, err := json.MarshalIndent(v, "", "  ")
			return append(out, '\n'), err
		}
	default:
		return "", fmt.Errorf("unknown format %q; use yaml or json", o.format)
	}
	known, err := o.expected.read()
	if err != nil {
		return "", err
	}
	empty := true
	status, err := reportOn(ctx, path, stdin, known, o.expected.retention, window, now, func(*rack.AuditRecord) { empty = false })
	if malformed := (*ledger.MalformedError)(nil); errors.As(err, &malformed) {
		return "", verdict(fmt.Sprintf("the file is not an export of a ledger: %v", err))
	}
	if err != nil {
		return "", err
	}
	if empty {
		return "", verdict("the file has no records to report on")
	}
	external := &v1alpha1.ComplianceReport{}
	internal := &rack.ComplianceReport{ObjectMeta: metav1.ObjectMeta{Name: window.Name, CreationTimestamp: metav1.NewTime(now.UTC().Truncate(time.Second))}, Status: status}
	if err := v1alpha1.Convert_rack_ComplianceReport_To_v1alpha1_ComplianceReport(internal, external, nil); err != nil {
		return "", err
	}
	external.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("ComplianceReport"))
	out, err := encode(external)
	if err != nil {
		return "", err
	}
	_, err = stdout.Write(out)
	return status.Verdict, err
}
