package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/ledger/usage"
)

type usageOptions struct {
	window    string
	namespace string
	asOf      string
	output    string
	expected  expectation
}

func newUsageCommand(clock clock.PassiveClock) *cobra.Command {
	options := &usageOptions{}
	cmd := &cobra.Command{
		Use:   "usage FILE",
		Short: "Report from the records in a file how Macs were used by leases",
		Long: `Print the use of Macs by the leases in an export (JSON Lines or CSV; - is the standard input), as the UsageReports of the
server have it. The text is a table by namespace, class and SKU. CSV has a line for each lease, with its records. JSON is a
UsageReportList.

A lease whose release is not in the file counts as running until --as-of. For an old export, pass the time of the export.
The exit code is 0 if the ledger proves the use, 1 if it does not or the file is not an export, and 2 if the file could not be read.`,
		Example: `  macrack-ledger usage ledger.jsonl --window 2026-11
  macrack-ledger usage ledger.jsonl --window 2026-11 --namespace acme -o csv > acme-2026-11.csv`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return options.run(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout(), clock.Now())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.window, "window", "month", "Window in UTC: today, month, a month such as 2026-11, hours or days such as 7d, or two dates such as 2026-08-01..2026-11-01.")
	flags.StringVarP(&options.namespace, "namespace", "n", "", "Namespace of the tenant. Default: all.")
	flags.StringVar(&options.asOf, "as-of", "", "Time of the report, such as 2026-12-01T00:00:00Z. Default: now.")
	flags.StringVarP(&options.output, "output", "o", "text", "Format: text, csv or json.")
	options.expected.addFlags(cmd)
	return cmd
}

func (o *usageOptions) run(ctx context.Context, path string, stdin io.Reader, stdout io.Writer, now time.Time) error {
	write, found := map[string]func(io.Writer, *rack.UsageReportList) error{"text": writeUsageText, "csv": writeUsageCSV, "json": writeUsageJSON}[o.output]
	if !found {
		return fmt.Errorf("unknown format %q; use text, csv or json", o.output)
	}
	if o.asOf != "" {
		asOf, err := time.Parse(time.RFC3339, o.asOf)
		if err != nil {
			return fmt.Errorf("--as-of %q is not a time such as 2026-12-01T00:00:00Z", o.asOf)
		}
		now = asOf
	}
	known, err := o.expected.read()
	if err != nil {
		return err
	}
	source, anchors := open(path, stdin, known, o.expected.retention, now)
	findings, err := ledger.Find(ctx, source, anchors, ledger.Everything(now))
	if malformed := (*ledger.MalformedError)(nil); errors.As(err, &malformed) {
		return verdict(fmt.Sprintf("the file is not an export of a ledger: %v", err))
	}
	if err != nil {
		return err
	}
	status := findings.Reports[0]
	if status.Records == 0 {
		return verdict("the file has no records to report on")
	}
	list, err := o.reports(usage.NewBook(findings.Leases, now, status.CoveredSince))
	if err != nil {
		return err
	}
	if err := write(stdout, list); err != nil {
		return err
	}
	return usageVerdict(list, status)
}

// reports returns the report of each namespace with leases in the window.
func (o *usageOptions) reports(book *usage.Book) (*rack.UsageReportList, error) {
	window, err := book.Window(o.window)
	if err != nil {
		return nil, err
	}
	list := &rack.UsageReportList{}
	for _, tenant := range book.Tenants() {
		report := book.Report(tenant, window, nil)
		if report.Status.Total.Leases > 0 && (o.namespace == "" || o.namespace == tenant) {
			list.Items = append(list.Items, report)
		}
	}
	return list, nil
}

func usageVerdict(list *rack.UsageReportList, status rack.ComplianceReportStatus) error {
	var unproven int64
	for _, report := range list.Items {
		unproven += report.Status.Unproven
	}
	switch {
	case unproven > 0:
		return verdict(fmt.Sprintf("the ledger does not prove all use: unproven leases: %d; -o csv has the causes", unproven))
	case status.BrokenChains > 0:
		return verdict(fmt.Sprintf("%d chains of the ledger are broken, and leases may be missing; run macrack-ledger verify", status.BrokenChains))
	}
	return nil
}

func writeUsageText(w io.Writer, list *rack.UsageReportList) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tCLASS\tSKU\tLEASES\tRUNNING\tCHASSIS-DAYS\tCHASSIS-HOURS\tHELD-HOURS")
	for _, report := range list.Items {
		for _, class := range report.Status.Classes {
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", printable(report.Namespace), orNone(class.ClassName), orNone(class.SKU), class.Total.Leases,
				class.Running.Leases, class.Total.BillableDays, hours(class.Total.ChassisTime), hours(class.Total.HeldTime))
		}
	}
	if err := table.Flush(); err != nil || len(list.Items) == 0 {
		return err
	}
	status := list.Items[0].Status
	fmt.Fprintf(w, "from %s to %s, as of %s\n", status.From.UTC().Format(time.RFC3339), status.To.UTC().Format(time.RFC3339), status.AsOf.UTC().Format(time.RFC3339))
	if status.CoveredSince != nil {
		fmt.Fprintf(w, "the ledger has all records since %s only\n", status.CoveredSince.UTC().Format(time.RFC3339))
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return printable(s)
}

func writeUsageCSV(w io.Writer, list *rack.UsageReportList) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"namespace", "lease", "uid", "class", "sku", "serialNumber", "boundAt", "earliestReleaseAt", "deletedAt", "billableUntil", "releasedAt",
		"billableDays", "chassisHours", "heldHours", "chassisSeconds", "heldSeconds", "records", "unproven"}}
	for _, report := range list.Items {
		for _, l := range report.Status.Leases {
			rows = append(rows, []string{report.Namespace, l.Name, string(l.UID), l.ClassName, l.SKU, l.SerialNumber,
				utc(&l.BoundAt), utc(&l.EarliestReleaseAt), utc(l.DeletedAt), utc(l.BillableUntil), utc(l.ReleasedAt),
				strconv.FormatInt(l.BillableDays, 10), hours(l.ChassisTime), hours(l.HeldTime), seconds(l.ChassisTime), seconds(l.HeldTime),
				strings.Join(l.Records, " "), l.Unproven})
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = ledger.GuardCell(cell)
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func writeUsageJSON(w io.Writer, list *rack.UsageReportList) error {
	external := &v1alpha1.UsageReportList{}
	if err := v1alpha1.Convert_rack_UsageReportList_To_v1alpha1_UsageReportList(list, external, nil); err != nil {
		return err
	}
	external.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("UsageReportList"))
	for i := range external.Items {
		external.Items[i].SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("UsageReport"))
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(external)
}

// hours returns a time in hours, rounded to hundredths.
func hours(d metav1.Duration) string {
	hundredths := (d.Duration + 18*time.Second) / (36 * time.Second)
	return fmt.Sprintf("%d.%02d", hundredths/100, hundredths%100)
}

func seconds(d metav1.Duration) string { return strconv.FormatInt(int64(d.Duration/time.Second), 10) }

func utc(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
