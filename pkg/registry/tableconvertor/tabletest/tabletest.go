// Package tabletest prints tables as kubectl get does.
package tabletest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Print returns the lines of kubectl get -o wide, without trailing spaces. A bar precedes the
// columns that only -o wide shows. It fails if a column has no description, or if a row does not
// have one cell per column.
func Print(t *testing.T, convertor rest.TableConvertor, object runtime.Object) []string {
	t.Helper()
	table, err := convertor.ConvertToTable(context.Background(), object, &metav1.TableOptions{})
	require.NoError(t, err)
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	var header []string
	bar := -1
	for i, column := range table.ColumnDefinitions {
		require.NotEmpty(t, column.Description, column.Name)
		if column.Priority > 0 && bar < 0 {
			bar = i
		}
		require.Equal(t, bar >= 0, column.Priority > 0, "wide columns come last")
		header = append(header, strings.ToUpper(column.Name))
	}
	write := func(cells []string) {
		if bar >= 0 {
			cells = append(cells[:bar:bar], append([]string{"|"}, cells[bar:]...)...)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	write(header)
	for _, row := range table.Rows {
		require.Len(t, row.Cells, len(header))
		var cells []string
		for i, cell := range row.Cells {
			if table.ColumnDefinitions[i].Type == "integer" {
				require.IsType(t, int64(0), cell, header[i])
			} else {
				require.IsType(t, "", cell, header[i])
			}
			cells = append(cells, fmt.Sprint(cell))
		}
		write(cells)
	}
	require.NoError(t, w.Flush())
	var lines []string
	for _, line := range strings.Split(strings.TrimRight(out.String(), "\n"), "\n") {
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}
