package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/ledger"
)

// pageSize is the number of records in a page.
const pageSize = 500

type exportOptions struct {
	kubeconfig string
	context    string
	format     string
	output     string
}

func newExportCommand() *cobra.Command {
	options := &exportOptions{}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write all records to a file, in chain order",
		Example: `  macrack-ledger export --kubeconfig admin.kubeconfig --output ledger.jsonl
  macrack-ledger export --format csv > ledger.csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := options.lister()
			if err != nil {
				return err
			}
			return options.run(cmd.Context(), list, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.kubeconfig, "kubeconfig", "", "Path of the kubeconfig. Default: KUBECONFIG or ~/.kube/config.")
	flags.StringVar(&options.context, "context", "", "Context of the kubeconfig. Default: the current one.")
	flags.StringVar(&options.format, "format", string(ledger.JSONLines), "Format of the file: jsonl or csv.")
	flags.StringVarP(&options.output, "output", "o", "-", "File to write; - is the standard output. The file appears only when complete.")
	return cmd
}

// lister lists a page of the records of all namespaces.
type lister func(ctx context.Context, options metav1.ListOptions) (*v1alpha1.AuditRecordList, error)

func (o *exportOptions) lister() (lister, error) {
	client, err := newClient(o.kubeconfig, o.context)
	if err != nil {
		return nil, err
	}
	return client.RackV1alpha1().AuditRecords(metav1.NamespaceAll).List, nil
}

// newClient returns a client for a context of a kubeconfig; empty names select the defaults.
func newClient(kubeconfig, context string) (versioned.Interface, error) {
	config, err := apiclient.Kubeconfig(kubeconfig, context)
	if err != nil {
		return nil, err
	}
	return versioned.NewForConfig(apiclient.Protobuf(config))
}

func (o *exportOptions) run(ctx context.Context, list lister, stdout, stderr io.Writer) error {
	var count int64
	write := func(w io.Writer) (err error) {
		count, err = ledger.Export(ctx, ledger.Sorted(records(list)), w, ledger.Format(o.format))
		return err
	}
	var err error
	if o.output == "-" {
		err = write(stdout)
	} else {
		err = writeFile(o.output, write)
	}
	if err == nil {
		fmt.Fprintf(stderr, "%d records\n", count)
	}
	return err
}

// writeFile calls write and creates the file once it is complete.
func writeFile(path string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".macrack-ledger-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := errors.Join(write(file), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// records returns a source of all records at one revision: namespace by namespace, in the order of
// the API.
func records(list lister) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		options := metav1.ListOptions{Limit: pageSize}
		for {
			page, err := list(ctx, options)
			if err != nil {
				return err
			}
			for i := range page.Items {
				record, err := ledger.FromAPI(&page.Items[i])
				if err != nil {
					return err
				}
				if err := yield(record); err != nil {
					return err
				}
			}
			if options.Continue = page.Continue; options.Continue == "" {
				return nil
			}
		}
	}
}
